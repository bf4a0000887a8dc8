package reconcile

import "time"

const (
	// burstSize is the number of changes in one step that begins or continues a burst.
	burstSize = 8
	// burstGap is the time after such a step in which more changes are expected.
	burstGap = 5 * time.Millisecond
)

// Burst detects many changes in quick succession. During a burst, a caller waits a moment before its next step: a few
// large steps cost less than many small ones. A single change is no burst, and waits for nothing.
type Burst struct{ last time.Time }

// Record records a step that had a number of changes.
func (b *Burst) Record(now time.Time, changes int) {
	if changes >= burstSize {
		b.last = now
	}
}

// Continues reports whether more changes are expected.
func (b *Burst) Continues(now time.Time) bool { return now.Sub(b.last) < burstGap }
