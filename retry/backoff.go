package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is the pause before a failed action is tried again: Min, doubled with each failure in a row, up to Max.
type Backoff struct {
	Min, Max time.Duration
	// Spread varies each pause at random by up to half of it: the nodes that lose the same server do not all come back
	// to it at the same time.
	Spread bool
}

// After returns the pause after so many failures in a row.
func (b Backoff) After(failures int) time.Duration {
	d := b.Min
	for ; failures > 1 && d < b.Max; failures-- {
		d *= 2
	}
	d = min(d, b.Max)
	if b.Spread {
		return d/2 + rand.N(d)
	}
	return d
}

// Count returns the failures in a row with one more, of an action that worked for a while before it failed. If that was
// the longest pause or more, this failure is the first.
func (b Backoff) Count(failures int, worked time.Duration) int {
	if worked >= b.Max {
		return 1
	}
	return failures + 1
}

// Repeat calls action until it returns nil or ctx ends, with a pause after each failure. failed gets each error; it
// returns false if there is no use in another attempt. Repeat returns nil, that error, or the cause of ctx's end.
func (b Backoff) Repeat(
	ctx context.Context, action func(context.Context) error, failed func(error) (again bool),
) error {
	for failures := 0; ; {
		began := time.Now()
		err := action(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !failed(err):
			return err
		}
		failures = b.Count(failures, time.Since(began))
		if !Sleep(ctx, b.After(failures)) {
			return context.Cause(ctx)
		}
	}
}

// Sleep waits. It returns false if ctx ended before.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
