package route

import "time"

// resync schedules comparisons with the whole kernel state.
type resync struct {
	at      time.Time // of the next comparison
	doubt   time.Time // of one that may turn out to be needless; zero for none
	last    time.Time
	pause   time.Duration // before the next one in doubt
	listed  bool          // at least once
	lastErr error
}

const (
	resyncGap      = 250 * time.Millisecond // between two comparisons, even in a storm of events
	resyncRetry    = time.Second
	resyncPauseMax = time.Minute
	resyncEvery    = 90 * time.Second // for changes without an event
)

// want schedules a comparison at that time, or earlier.
func (r *resync) want(at time.Time) {
	if gap := r.last.Add(resyncGap); at.Before(gap) {
		at = gap
	}
	if r.at.IsZero() || at.Before(r.at) {
		r.at = at
	}
}

// answers draws conclusions from the kernel's answers to the last changes.
func (r *resync) answers(t *kernelTarget, now time.Time) {
	if t.lost {
		r.want(now)
	}
	if t.doubt && r.doubt.IsZero() {
		// There is a route that we do not know of. Most likely its event is on the way, and settles the matter.
		r.pause = min(2*r.pause+resyncGap, resyncPauseMax) // comparisons that do not help become rare
		r.doubt = now.Add(r.pause)
	}
	t.lost, t.doubt = false, false
}

// due reports whether it is time, given how many routes the kernel refuses.
func (r *resync) due(now time.Time, failures int) bool {
	if !r.doubt.IsZero() && !now.Before(r.doubt) {
		r.doubt = time.Time{}
		if failures > 0 {
			return true
		}
		r.pause = 0
	}
	return !now.Before(r.at)
}

func (r *resync) next() time.Time {
	if !r.doubt.IsZero() && r.doubt.Before(r.at) {
		return r.doubt
	}
	return r.at
}

// done records a comparison.
func (r *resync) done(now time.Time) {
	r.at, r.listed = now.Add(resyncEvery), true
}
