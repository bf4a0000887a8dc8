package reconcile

import (
	"errors"
	"testing"
	"time"
)

// While a comparison fails, its error stays that of each Flush, and the pauses grow to the usual time.
func TestFailedComparison(t *testing.T) {
	now := time.Unix(1000, 0)
	c := NewChecked[string, int](nil, "things", 10*time.Second, func() time.Time { return now })
	broken := errors.New("broken")
	prepare := func() error { return broken }
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if err := c.Compare(prepare); err != broken || c.Failure() != broken {
			t.Errorf("comparison %d: %v, then %v", i, err, c.Failure())
		}
		if next := c.Next(); next != want*time.Second {
			t.Errorf("after %d failures the next one comes in %s, want %s", i+1, next, want*time.Second)
		}
		if _, _, err := c.Flush(); err != broken {
			t.Errorf("a Flush between two comparisons returns %v", err)
		}
		now = now.Add(c.Next())
	}
}
