package reconcile

import "time"

// round is how many steps go to the target at once: it bounds memory, not the work of a flush.
const round = 2048

// Flush applies all due steps: additions and changes first, then removals. It returns the number of steps and of
// failures among them. A failure stops nothing; Next returns when it is tried again.
func (t *Table[K, V]) Flush() (steps, failures int) {
	now := t.now()
	t.failed.Due(now, t.retry)
	dirty := t.dirty
	t.dirty = nil
	for _, e := range dirty {
		e.dirty = false
		t.plan(e, now)
		if len(t.steps) == round {
			failures += t.apply(now)
			steps += round
		}
	}
	steps, failures = steps+len(t.steps), failures+t.apply(now)
	for _, e := range t.removals {
		t.step(e, Step[K, V]{Action: Remove, Key: e.key, Old: e.have})
		if len(t.steps) == round {
			failures += t.apply(now)
			steps += round
		}
	}
	steps, failures = steps+len(t.steps), failures+t.apply(now)
	t.removals = t.removals[:0]
	if len(t.dirty) == 0 && cap(dirty) <= round {
		clear(dirty)
		t.dirty = dirty[:0]
	}
	return steps, failures
}

// Next is when the first failed object is due again; ok is false if there is none.
func (t *Table[K, V]) Next() (at time.Time, ok bool) { return t.failed.Next() }

// plan decides the action for an object: a step now, a removal later, or nothing.
func (t *Table[K, V]) plan(e *entry[K, V], now time.Time) {
	if e.since == 0 {
		e.since = now.UnixNano()
	}
	switch {
	case e.wanted && !e.present:
		t.step(e, Step[K, V]{Action: Add, Key: e.key, New: e.want})
	case e.wanted && !t.equal(e.want, e.have):
		t.step(e, Step[K, V]{Action: Change, Key: e.key, New: e.want, Old: e.have})
	case e.wanted:
		t.settle(e)
	case e.present && (t.prune || !e.adopted):
		t.removals = append(t.removals, e)
	case !e.present:
		t.forget(e)
	}
}

func (t *Table[K, V]) step(e *entry[K, V], s Step[K, V]) {
	t.steps = append(t.steps, s)
	t.stepped = append(t.stepped, e)
}

// apply passes the collected steps to the target.
func (t *Table[K, V]) apply(now time.Time) (failures int) {
	if len(t.steps) == 0 {
		return 0
	}
	errs := t.applier.Apply(t.steps)
	for i, e := range t.stepped {
		if errs != nil && errs[i] != nil {
			if t.failed.Add(e.key, errs[i], now) {
				e.since = now.UnixNano()
			}
			failures++
			continue
		}
		t.succeed(e, &t.steps[i], now)
	}
	clear(t.steps) // keep no values alive
	clear(t.stepped)
	t.steps, t.stepped = t.steps[:0], t.stepped[:0]
	return failures
}

func (t *Table[K, V]) succeed(e *entry[K, V], s *Step[K, V], now time.Time) {
	t.repaired(e, s)
	if s.Action == Remove {
		var none V
		e.have, e.present = none, false
		t.forget(e)
		return
	}
	// The desired value takes the place of the one that was read: one copy for both.
	e.have, e.present = s.New, true
	e.since = now.UnixNano()
	t.settle(e)
}

// settle: the object is as desired.
func (t *Table[K, V]) settle(e *entry[K, V]) {
	t.failed.Forgive(e.key)
	e.have, e.drifted = e.want, false
}

// forget drops an object that is neither wanted nor there.
func (t *Table[K, V]) forget(e *entry[K, V]) {
	t.failed.Forgive(e.key)
	if t.entries[e.key] == e {
		delete(t.entries, e.key)
	}
}
