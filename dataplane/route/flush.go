package route

import (
	"time"

	"github.com/manxnet/manx/dataplane/reconcile"
)

// round is how many steps go to the kernel at once: it bounds memory, not the work of a flush.
const round = 2048

// Flush applies all due steps: additions and changes first, then removals. It returns the number of steps and of
// failures among them. A failure stops nothing; Next returns when it is tried again.
func (t *table) Flush() (steps, failures int) {
	now := t.now()
	t.kernel.failed = nil
	t.failed.Due(now, t.enqueue)
	do := func(n uint32, action reconcile.Action) {
		t.steps = append(t.steps, step{action, n})
		if len(t.steps) == round {
			failures += t.apply(now)
			steps += round
		}
	}
	dirty := t.dirty
	t.dirty = nil
	for _, n := range dirty {
		t.plan(n, now, do)
	}
	steps, failures = steps+len(t.steps), failures+t.apply(now)
	for _, n := range t.removals {
		do(n, reconcile.Remove)
	}
	steps, failures = steps+len(t.steps), failures+t.apply(now)
	if t.removals = t.removals[:0]; cap(t.removals) > round {
		t.removals = nil
	}
	if len(t.dirty) == 0 && cap(dirty) <= round {
		t.dirty = dirty[:0]
	}
	return steps, failures
}

// Next returns when the first failed route is due again; ok is false if there is none.
func (t *table) Next() (at time.Time, ok bool) { return t.failed.Next() }

// plan decides the action for a route: a step now, a removal later, or nothing.
func (t *table) plan(n uint32, now time.Time, do func(uint32, reconcile.Action)) {
	r := t.row(n)
	r.flags &^= rowDirty
	if r.since == (wide{}) {
		r.changedAt(now)
	}
	switch {
	case r.want != 0 && r.have == 0:
		do(n, reconcile.Add)
	case r.want != 0 && !t.shapes.equal(r.want, r.have):
		do(n, reconcile.Change)
	case r.want != 0:
		t.reached(n)
	case r.have != 0 && (t.prune || !r.is(rowAdopted)):
		t.removals = append(t.removals, n)
	case r.have == 0:
		t.drop(n)
	}
}

// apply passes the collected steps to the kernel.
func (t *table) apply(now time.Time) (failures int) {
	if len(t.steps) == 0 {
		return 0
	}
	errs := t.kernel.apply(t.steps)
	for i, s := range t.steps {
		t.notify(s.row)
		if errs == nil || errs[i] == nil {
			t.succeed(s, now)
			continue
		}
		if t.failed.Add(s.row, errs[i], now) {
			t.row(s.row).changedAt(now)
		}
		failures++
	}
	t.steps = t.steps[:0]
	return failures
}

func (t *table) succeed(s step, now time.Time) {
	t.recordRepair(s)
	r := t.row(s.row)
	if s.Action == reconcile.Remove {
		r.have = 0
		t.drop(s.row)
		return
	}
	r.changedAt(now)
	t.reached(s.row)
}

// reached records that a route is as desired.
func (t *table) reached(n uint32) {
	t.failed.Forgive(n)
	r := t.row(n)
	r.have = r.want
	r.flags &^= rowDrifted
}

// drop forgets a route that is neither desired nor there.
func (t *table) drop(n uint32) {
	t.failed.Forgive(n)
	t.rows.dropRoute(n)
}

// recordRepair records a step that undid changes by others.
func (t *table) recordRepair(s step) {
	if r := t.row(s.row); !r.is(rowDrifted) {
		return
	} else {
		r.flags &^= rowDrifted
	}
	t.repairs.Add(func() reconcile.Repair {
		r := reconcile.Repair{Key: t.key(s.row).String()}
		if s.Action != reconcile.Add {
			r.Found = t.actual(s.row).String()
		}
		if s.Action != reconcile.Remove {
			r.Wanted = t.wanted(s.row).String()
		}
		return r
	})
}
