package node

import (
	"context"
	"time"
)

// await waits until one of two channels is closed, or for the due time; nil and the zero time are never. It returns
// ctx's error if that ends first.
func await(ctx context.Context, due time.Time, changed, orChanged <-chan struct{}) error {
	var over <-chan time.Time
	if !due.IsZero() {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-changed:
	case <-orChanged:
	case <-over:
	case <-ctx.Done():
	}
	return ctx.Err()
}
