package dataplane

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/reconcile"
)

// A watch that fails and works again is not reported as broken any more.
func TestWatchThatWorksAgainIsSaidToWork(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	broken := errors.New("broken")
	var reported []error
	var pauses []time.Duration
	after := func(d time.Duration) <-chan time.Time {
		pauses = append(pauses, d)
		now := make(chan time.Time, 1)
		now <- time.Time{}
		return now
	}
	n := 0
	keepWatching(ctx, after, func(err error) { reported = append(reported, err) }, func(works func()) error {
		switch n++; n {
		case 1: // fails after it has worked
			works()
			works()
		case 2, 3: // cannot even be opened
		default:
			works()
			works()
			cancel()
			return nil
		}
		return broken
	})
	if want := []error{broken, broken, broken, nil}; !slices.Equal(reported, want) {
		t.Errorf("reported %v, want %v", reported, want)
	}
	first := reconcile.DefaultBackoff.Min
	if want := []time.Duration{first, 2 * first, 4 * first}; !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
}
