package retry

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoffGrowsToItsMaximum(t *testing.T) {
	b := Backoff{Min: 100, Max: 1000}
	for failures, want := range map[int]time.Duration{1: 100, 2: 200, 4: 800, 5: 1000, 1 << 30: 1000} {
		if got := b.After(failures); got != want {
			t.Errorf("after %d failures: %d, want %d", failures, got, want)
		}
	}
}

func TestSpread(t *testing.T) {
	b := Backoff{Min: time.Second, Max: time.Second, Spread: true}
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := b.After(1)
		least, most = min(least, d), max(most, d)
	}
	const half, top = 500 * time.Millisecond, 1500 * time.Millisecond
	if least < half || least > 6*half/5 || most < 14*top/15 || most >= top {
		t.Errorf("pauses from %s to %s", least, most)
	}
}

// The pauses grow while the action fails at once, and begin again after it has worked for the longest one.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{Min: time.Second, Max: 4 * time.Second}
		broken, hopeless := errors.New("broken"), errors.New("hopeless")
		began := time.Now()
		var at []time.Duration
		err := b.Repeat(t.Context(), func(context.Context) error {
			at = append(at, time.Since(began))
			switch len(at) {
			case 5:
				time.Sleep(b.Max)
			case 7:
				return hopeless
			}
			return broken
		}, func(err error) bool { return err == broken })
		if err != hopeless {
			t.Errorf("ended with %v", err)
		}
		want := []time.Duration{0, 1, 3, 7, 11, 16, 18} // it works from 11 to 15
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(at, want) {
			t.Errorf("attempts at %v, want %v", at, want)
		}
		if err := b.Repeat(t.Context(), func(context.Context) error { return nil }, nil); err != nil {
			t.Errorf("after success: %v", err)
		}
	})
}

// The end of the context ends a pause, and is no failure of the action.
func TestRepeatEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := errors.New("over")
		for _, lasts := range []time.Duration{0, time.Minute} {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(30*time.Second, func() { cancel(over) })
			failures, began := 0, time.Now()
			err := Backoff{Min: time.Hour, Max: time.Hour}.Repeat(ctx, func(ctx context.Context) error {
				if !Sleep(ctx, lasts) {
					return ctx.Err()
				}
				return errors.New("broken")
			}, func(error) bool { failures++; return true })
			if err != over || time.Since(began) != 30*time.Second || lasts == 0 != (failures == 1) {
				t.Errorf("after %s: %v, with %d failures", time.Since(began), err, failures)
			}
		}
	})
}
