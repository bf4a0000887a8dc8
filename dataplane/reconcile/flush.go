package reconcile

import "time"

// Flush applies everything that is due: additions and changes first, then removals. It returns the number of steps and
// of failures among them. A failure stops nothing; Next says when it is tried again.
func (t *Table[K, V]) Flush() (steps, failures int) {
	now := t.now()
	t.wakeFailed(now)
	t.plan()
	if len(t.steps) == 0 {
		return 0, 0
	}
	errs := t.target.Apply(t.steps)
	for i, e := range t.stepped {
		var err error
		if errs != nil {
			err = errs[i]
		}
		if t.finish(e, &t.steps[i], err, now) {
			failures++
		}
	}
	steps = len(t.steps)
	clear(t.steps) // keep no values alive
	clear(t.stepped)
	return steps, failures
}

// Next is when the first failed object is due again; ok is false if there is none.
func (t *Table[K, V]) Next() (at time.Time, ok bool) { return t.retryAt, len(t.failed) > 0 }

// wakeFailed makes the failed objects dirty whose time has come.
func (t *Table[K, V]) wakeFailed(now time.Time) {
	if len(t.failed) == 0 || now.Before(t.retryAt) {
		return
	}
	t.retryAt = time.Time{}
	for _, e := range t.failed {
		if !now.Before(e.retryAt) {
			t.touch(e)
		} else {
			t.retryBy(e.retryAt)
		}
	}
}

func (t *Table[K, V]) retryBy(at time.Time) {
	if t.retryAt.IsZero() || at.Before(t.retryAt) {
		t.retryAt = at
	}
}

// plan turns the dirty objects into steps.
func (t *Table[K, V]) plan() {
	t.steps, t.stepped = t.steps[:0], t.stepped[:0]
	removals := 0
	for _, e := range t.dirty {
		e.dirty = false
		switch {
		case e.wanted && !e.present:
			t.step(e, Step[K, V]{Action: Add, Key: e.key, New: e.want})
		case e.wanted && !t.equal(e.want, e.have):
			t.step(e, Step[K, V]{Action: Change, Key: e.key, New: e.want, Old: e.have})
		case e.wanted:
			t.settle(e)
		case e.present && (t.prune || !e.adopted):
			t.dirty[removals] = e
			removals++
		case !e.present:
			t.forget(e)
		}
	}
	for _, e := range t.dirty[:removals] {
		t.step(e, Step[K, V]{Action: Remove, Key: e.key, Old: e.have})
	}
	clear(t.dirty)
	t.dirty = t.dirty[:0]
}

func (t *Table[K, V]) step(e *entry[K, V], s Step[K, V]) {
	t.steps = append(t.steps, s)
	t.stepped = append(t.stepped, e)
}

// finish records the outcome of a step.
func (t *Table[K, V]) finish(e *entry[K, V], s *Step[K, V], err error, now time.Time) (failed bool) {
	if err != nil {
		if e.err == nil || e.err.Error() != err.Error() {
			e.since = now
		}
		e.err = err
		e.failures = min(e.failures, 1000) + 1
		e.retryAt = now.Add(t.backoff.After(int(e.failures)))
		t.failed[e.key] = e
		t.retryBy(e.retryAt)
		return true
	}
	if s.Action == Remove {
		var none V
		e.have, e.present = none, false
		t.forget(e)
		return false
	}
	// The desired value takes the place of the one that was read: one copy for both.
	e.have, e.present = s.New, true
	e.since = now
	t.settle(e)
	return false
}

// settle: the object is as desired.
func (t *Table[K, V]) settle(e *entry[K, V]) {
	if len(t.failed) > 0 {
		delete(t.failed, e.key)
	}
	e.err, e.failures = nil, 0
	e.have = e.want
}

// forget drops an object that is neither wanted nor there.
func (t *Table[K, V]) forget(e *entry[K, V]) {
	delete(t.failed, e.key)
	if t.entries[e.key] == e {
		delete(t.entries, e.key)
	}
}
