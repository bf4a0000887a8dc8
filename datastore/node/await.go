package node

import (
	"context"
	"time"
)

// await waits until one of the channels is closed, or for the due time; nil and the zero time are never. It returns
// ctx's error if that ends first.
func await(ctx context.Context, due time.Time, a, b, c <-chan struct{}) error {
	var over <-chan time.Time
	if !due.IsZero() {
		timer := time.NewTimer(time.Until(due))
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-a:
	case <-b:
	case <-c:
	case <-over:
	case <-ctx.Done():
	}
	return ctx.Err()
}
