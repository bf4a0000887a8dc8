package route

import (
	"fmt"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/prefixtable"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/retry"
)

// table has for each route the desired and the actual state, and the pending step. It keeps the contract of
// reconcile.Table, whose tests it passes, in a tenth of the memory. Not safe for concurrent use.
type table struct {
	rows   rows
	shapes shapes
	kernel *kernelTarget
	now    func() time.Time

	dirty    []uint32 // rows
	removals []uint32 // of the flush that is under way
	steps    []step
	failed   *retry.Failures[uint32]
	revision uint64
	prune    bool
	compared bool // with all that the kernel has, at least once
	repairs  reconcile.RepairLog

	followers map[*Changes]bool
}

// step is one change of a route: the Action takes it from row.have to row.want.
type step struct {
	reconcile.Action
	row uint32
}

func newTable(k *kernelTarget, now func() time.Time, backoff retry.Backoff) *table {
	t := &table{rows: rows{Table: prefixtable.New[row]()}, kernel: k, now: now,
		failed: retry.NewFailures[uint32](backoff), followers: map[*Changes]bool{}}
	k.table = t
	return t
}

func (t *table) row(n uint32) *row { return t.rows.Row(n) }

// wanted returns the desired route of a row, actual the one in the kernel.
func (t *table) wanted(n uint32) kernel.Route { return t.routeOf(n, t.row(n).want) }
func (t *table) actual(n uint32) kernel.Route { return t.routeOf(n, t.row(n).have) }

// routeOf returns the route to the prefix of row n that has a shape.
func (t *table) routeOf(n, shape uint32) kernel.Route {
	r := t.shapes.get(shape).Route
	r.Dst = t.rows.Prefix(n)
	return r
}

// key returns the key of a row's route.
func (t *table) key(n uint32) kernel.RouteKey {
	r := t.row(n)
	return kernel.RouteKey{Dst: t.rows.Prefix(n), Metric: r.metric, Table: r.table}
}

// setDesired makes a shape, 0 for no route, the desired state of a row's route. Row 0 has none.
func (t *table) setDesired(n, shape uint32) {
	if n == 0 || t.shapes.equal(t.row(n).want, shape) {
		return
	}
	t.change(n, shape)
}

func (t *table) change(n, shape uint32) {
	t.revision++
	r := t.row(n)
	r.want = shape
	r.revision.set(t.revision)
	r.since = wide{}
	r.flags &^= rowAdopted | rowDrifted
	t.failed.Forgive(n)
	t.enqueue(n)
}

// setDesiredIn makes a shape, 0 for no route, the desired state of the place whose first row is n.
func (t *table) setDesiredIn(n, shape uint32) {
	before := t.desiredIn(n)
	metric := uint32(0)
	if shape != 0 {
		metric = t.shapes.get(shape).Metric
	}
	if before != 0 && (shape == 0 || t.row(before).metric != metric) {
		t.setDesired(before, 0)
	}
	if shape != 0 {
		t.setDesired(t.rows.putRouteFrom(n, metric, t.row(n).table), shape)
	}
}

// desiredIn returns the row of the route that is desired in the place whose first row is n, 0 if none is.
func (t *table) desiredIn(n uint32) uint32 {
	for in := t.row(n).table; n != 0; n = t.row(n).next {
		if r := t.row(n); r.want != 0 && r.table == in {
			return n
		}
	}
	return 0
}

// Remove makes the absence of a route the desired state, also if an earlier run made it.
func (t *table) Remove(k kernel.RouteKey) {
	if n := t.rows.findRoute(k); n != 0 && t.row(n).have != 0 {
		t.change(n, 0)
	}
}

// Observe records that the kernel has a route, whichever program put it there.
func (t *table) Observe(r *kernel.Route) { t.setActual(t.rows.putRoute(r.Key()), t.shapes.number(r)) }

// ObserveGone records that the kernel does not have a route any more.
func (t *table) ObserveGone(k kernel.RouteKey) { t.setActual(t.rows.findRoute(k), 0) }

// setActual records the shape of a row's route in the kernel, 0 for no route. Row 0 has none.
func (t *table) setActual(n, shape uint32) {
	if n == 0 || shape == 0 && t.row(n).have == 0 {
		return
	}
	r := t.row(n)
	if r.want == 0 && r.have == 0 {
		r.flags |= rowAdopted
	}
	t.drift(n, shape)
	r.have = shape
	t.enqueue(n)
}

// drift marks a route that was as desired, or absent, and that others have changed or removed (0).
func (t *table) drift(n, shape uint32) {
	r := t.row(n)
	drifted := false
	switch {
	case r.is(rowDirty): // a change of our own is on its way
		return
	case r.want != 0:
		drifted = t.shapes.equal(r.want, r.have) && !t.shapes.equal(r.want, shape)
	default: // routes found first, or before pruning is allowed, are left from an earlier run
		drifted = t.compared && t.prune && shape != 0 && r.have == 0
	}
	r.flags &^= rowDrifted
	if drifted {
		r.flags |= rowDrifted
	}
}

// Retry makes the next Flush try a route again, if it failed.
func (t *table) Retry(k kernel.RouteKey) {
	if n := t.rows.findRoute(k); n != 0 && t.failed.Of(n) != nil {
		t.enqueue(n)
	}
}

// RetryAll makes the next Flush try everything that failed, without waiting for its time; how long later attempts wait
// starts again from the shortest time.
func (t *table) RetryAll() { t.failed.All(t.enqueue) }

// Prune sets whether unwanted routes of earlier runs may be removed.
func (t *table) Prune(allowed bool) {
	if allowed && !t.prune {
		for n := range t.rows.withRoute() {
			if t.row(n).is(rowAdopted) {
				t.enqueue(n)
			}
		}
	}
	t.prune = allowed
}

// Resync compares with all that the kernel has. After an error nothing is changed.
func (t *table) Resync() error {
	own, err := t.kernel.list()
	if err != nil {
		return err
	}
	for i := len(own) - 1; i >= 0; i-- { // of two with one key the last one counts
		n, shape := t.rows.putRoute(own[i].Key()), t.shapes.number(&own[i])
		if r := t.row(n); r.is(rowSeen) {
			continue
		} else if !t.shapes.equal(r.have, shape) {
			t.setActual(n, shape)
		}
		t.row(n).flags |= rowSeen
	}
	for n := range t.rows.withRoute() {
		if r := t.row(n); r.is(rowSeen) {
			r.flags &^= rowSeen
		} else {
			t.setActual(n, 0)
		}
	}
	t.compared = true
	return nil
}

// enqueue makes the next Flush check a route.
func (t *table) enqueue(n uint32) {
	t.notify(n)
	if r := t.row(n); !r.is(rowDirty) {
		r.flags |= rowDirty
		t.dirty = append(t.dirty, n)
	}
}

// Get returns a route as it is in the kernel; ok is false if it is not there.
func (t *table) Get(k kernel.RouteKey) (r kernel.Route, ok bool) {
	n := t.rows.findRoute(k)
	if n == 0 || t.row(n).have == 0 {
		return kernel.Route{}, false
	}
	return t.actual(n), true
}

// status returns the state of a row's route.
func (t *table) status(n uint32) reconcile.Status {
	r := t.row(n)
	s := reconcile.Status{Since: time.Unix(0, int64(r.since.value())), Revision: r.revision.value()}
	if r.since == (wide{}) {
		s.Since = t.now()
	}
	s.Phase, s.Reason = t.facts(n).Phase()
	return s
}

func (t *table) facts(n uint32) reconcile.Facts {
	r := t.row(n)
	return reconcile.Facts{Wanted: r.want != 0, Present: r.have != 0, AsWanted: t.shapes.equal(r.want, r.have),
		Adopted: r.is(rowAdopted), Failure: t.failed.Of(n)}
}

// Len is the number of routes that are desired or there.
func (t *table) Len() int { return t.rows.routes }

// Failures is the number of routes whose last attempt failed.
func (t *table) Failures() int { return t.failed.Len() }

// Problem returns how many routes failed, with the reason of one of them, the same one as long as it fails; nil if none
// did.
func (t *table) Problem() error {
	return t.failed.Problem(func(n uint32) string { return fmt.Sprint(t.key(n)) })
}

// Repairs returns the repairs since the last call, and how many more there were.
func (t *table) Repairs() ([]reconcile.Repair, int) { return t.repairs.Take() }

// forgetShapes forgets those that no route has any more, if they may be many, and reports whether it did.
func (t *table) forgetShapes() bool {
	if !t.shapes.Crowded() {
		return false
	}
	t.shapes.Sweep(func(yield func(uint32) bool) {
		for n := range t.rows.withRoute() {
			r := t.row(n)
			if r.want != 0 && !yield(r.want) || r.have != 0 && !yield(r.have) {
				return
			}
		}
	})
	return true
}
