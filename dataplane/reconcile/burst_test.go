package reconcile

import (
	"testing"
	"time"
)

// Only many changes at once begin a burst. Small steps neither end nor prolong it.
func TestBurst(t *testing.T) {
	now := time.Unix(1e9, 0)
	var b Burst
	for i, step := range []struct {
		after     time.Duration
		changes   int
		continues bool
	}{{0, 0, false}, {0, 1, false}, {0, burstSize - 1, false}, {0, burstSize, true}, {burstGap - 1, 0, true},
		{1, 0, false}, {time.Second, 1000, true}, {burstGap - 1, 1, true}, {1, 1, false}, {0, burstSize, true},
		{burstGap - 1, burstSize, true}, {burstGap - 1, 0, true}, {1, 0, false}} {
		now = now.Add(step.after)
		b.Record(now, step.changes)
		if got := b.Continues(now); got != step.continues {
			t.Errorf("step %d: the burst continues: %t, want %t", i, got, step.continues)
		}
	}
}
