package datastore

import (
	"context"
	"time"
)

// Compactor is a backend that keeps old revisions of its objects until compaction.
type Compactor interface {
	// Compact drops revisions that were overwritten or deleted at least a period ago, once in each period, until ctx
	// ends or the backend refuses. Any number of compactors may run concurrently, also in other programs.
	Compact(ctx context.Context, period time.Duration) error
}

// CompactorOf returns the compactor of a store, also of a wrapped one; nil if it has none.
func CompactorOf(s Store) Compactor {
	for s != nil {
		if c, ok := s.(Compactor); ok {
			return c
		}
		w, ok := s.(interface{ Unwrap() Backend })
		if !ok {
			return nil
		}
		s = w.Unwrap()
	}
	return nil
}
