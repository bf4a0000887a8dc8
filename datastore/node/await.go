package node

import (
	"context"
	"errors"
	"time"

	"github.com/manxnet/manx/datastore"
)

// await returns the snapshot after s, or s itself when it is due; the zero time is never.
func await(ctx context.Context, tables *datastore.Tables, s *datastore.Snapshot, due time.Time) (*datastore.Snapshot,
	error) {
	wait, cancel := ctx, context.CancelFunc(func() {})
	if !due.IsZero() {
		wait, cancel = context.WithDeadline(ctx, due)
	}
	defer cancel()
	next, err := tables.Wait(wait, s)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return s, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return next, err
}
