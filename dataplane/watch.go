package dataplane

import (
	"context"
	"time"

	"github.com/manxnet/manx/dataplane/reconcile"
)

// keepWatching calls watch until ctx ends, after a pause when it fails, which grows while it fails in a row. watch
// calls works for each event it receives. report gets each failure, and nil when watch works again. It is no
// retry.Backoff.Repeat, since its pauses are those of the agent's clock.
func keepWatching(
	ctx context.Context, after func(time.Duration) <-chan time.Time, report func(error), watch func(works func()) error,
) {
	failures := 0
	for ctx.Err() == nil {
		started, broken := time.Now(), failures > 0
		err := watch(func() {
			if broken {
				broken = false
				report(nil)
			}
		})
		if err == nil || ctx.Err() != nil {
			continue
		}
		failures = reconcile.DefaultBackoff.Count(failures, time.Since(started))
		report(err)
		select {
		case <-ctx.Done():
		case <-after(reconcile.DefaultBackoff.After(failures)):
		}
	}
}
