package datastore

import (
	"context"
	"time"
)

// Compactor is a backend that keeps old revisions of its objects until they are compacted.
type Compactor interface {
	// Compact drops what was overwritten or deleted a period ago or longer, once in each period, until ctx ends or the
	// backend refuses. Any number may do so at once, in other programs, too.
	Compact(ctx context.Context, period time.Duration) error
}

// CompactorOf returns the compactor of a store, also of one that is wrapped in others; nil if it has none.
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
