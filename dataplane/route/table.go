package route

import (
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/prefixtable"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/retry"
)

// table has for each route the desired and the actual state, and the pending step. It keeps the contract of
// reconcile.Table, whose tests it passes, in a tenth of the memory. Not safe for concurrent use.
type table struct {
	rows   *prefixtable.Table[row]
	shapes prefixtable.Interned[shapeKey, *shape]
	kernel *kernelTarget
	now    func() time.Time

	routes   int      // rows that stand for one
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
	t := &table{rows: prefixtable.New[row](), kernel: k, now: now, failed: retry.NewFailures[uint32](backoff),
		followers: map[*Changes]bool{}}
	k.table = t
	return t
}

func (t *table) row(n uint32) *row { return t.rows.Row(n) }

// first returns the first row for a prefix, and makes it if there is none.
func (t *table) first(p place) uint32 {
	n := t.rows.Put(p.dst)
	t.row(n).flags |= rowFirst
	return n
}

// find returns the first row of a place, 0 if there is none.
func (t *table) find(p place) uint32 {
	n := t.rows.Find(p.dst)
	for n != 0 && t.row(n).table != p.table {
		n = t.row(n).next
	}
	return n
}

// put returns the first row of a place, and makes it if there is none.
func (t *table) put(p place) uint32 {
	n := t.first(p)
	for t.row(n).table != p.table {
		if t.row(n).next == 0 {
			return t.behind(n, p.table)
		}
		n = t.row(n).next
	}
	return n
}

// behind makes another row of the same prefix behind n, the last one.
func (t *table) behind(n uint32, in kernel.Table) uint32 {
	m := t.rows.Beside(n)
	t.row(m).table = in
	t.row(n).next = m
	return m
}

// release removes a row that nothing is known of any more.
func (t *table) release(n uint32) {
	r := t.row(n)
	switch {
	case r.desired() || r.is(rowRoute|rowDirty):
	case !r.is(rowFirst):
		first := t.rows.Find(t.rows.Prefix(n))
		before := first
		for t.row(before).next != n {
			before = t.row(before).next
		}
		t.row(before).next = r.next
		t.rows.Remove(n)
		t.release(first)
	case r.next == 0:
		t.rows.Remove(n)
	}
}

// route finds the row of a route, 0 if it is neither wanted nor there.
func (t *table) route(k kernel.RouteKey) uint32 {
	return t.routeBehind(t.rows.Find(k.Dst), k.Metric, k.Table)
}

func (t *table) routeBehind(n, metric uint32, in kernel.Table) uint32 {
	for ; n != 0; n = t.row(n).next {
		if r := t.row(n); r.is(rowRoute) && r.metric == metric && r.table == in {
			return n
		}
	}
	return 0
}

// putRoute returns the row of a route, a new one without a route if there is no such row.
func (t *table) putRoute(k kernel.RouteKey) uint32 {
	return t.putRouteBehind(t.first(place{dst: k.Dst}), k.Metric, k.Table)
}

func (t *table) putRouteBehind(first, metric uint32, in kernel.Table) uint32 {
	if n := t.routeBehind(first, metric, in); n != 0 {
		return n
	}
	n := first
	for ; t.row(n).is(rowRoute) || t.row(n).table != in; n = t.row(n).next {
		if t.row(n).next == 0 {
			n = t.behind(n, in)
			break
		}
	}
	r := t.row(n)
	r.flags |= rowRoute
	r.metric = metric
	t.routes++
	return n
}

// number returns the number of a route's shape.
func (t *table) number(r *kernel.Route) uint32 {
	return t.shapes.Number(keyOfShape(r), func() *shape {
		s := &shape{*r}
		s.Dst = netip.Prefix{}
		return s
	})
}

func (t *table) shape(number uint32) *shape { return *t.shapes.At(number) }

// wants returns the desired route of a row, has the actual one.
func (t *table) wants(n uint32) kernel.Route { return t.with(n, t.row(n).want) }
func (t *table) has(n uint32) kernel.Route   { return t.with(n, t.row(n).have) }

func (t *table) with(n, number uint32) kernel.Route {
	r := t.shape(number).Route
	r.Dst = t.rows.Prefix(n)
	return r
}

// key returns the key of a row's route.
func (t *table) key(n uint32) kernel.RouteKey {
	r := t.row(n)
	return kernel.RouteKey{Dst: t.rows.Prefix(n), Metric: r.metric, Table: r.table}
}

// same reports whether two shapes are equal; 0 is none.
func (t *table) same(a, b uint32) bool {
	return a == b || a != 0 && b != 0 && t.shape(a).Equal(t.shape(b).Route)
}

// Set makes a route the desired state of its key.
func (t *table) Set(r *kernel.Route) { t.set(t.putRoute(r.Key()), t.number(r)) }

func (t *table) set(n, number uint32) {
	r := t.row(n)
	if r.want != 0 && t.same(r.want, number) {
		return
	}
	r.want = number
	r.flags &^= rowAdopted
	t.changed(n)
}

// Unset makes the absence of a route the desired state.
func (t *table) Unset(k kernel.RouteKey) { t.unset(t.route(k)) }

func (t *table) unset(n uint32) {
	if n == 0 || t.row(n).want == 0 {
		return
	}
	t.row(n).want = 0
	t.changed(n)
}

func (t *table) changed(n uint32) {
	t.revision++
	r := t.row(n)
	r.revision.set(t.revision)
	r.since = wide{}
	r.flags &^= rowDrifted
	t.failed.Forgive(n)
	t.touch(n)
}

// want makes a shape, 0 for no route, the desired state of the place whose first row is n.
func (t *table) want(n, number uint32) {
	before := t.wanted(n)
	metric := uint32(0)
	if number != 0 {
		metric = t.shape(number).Metric
	}
	if before != 0 && (number == 0 || t.row(before).metric != metric) {
		t.unset(before)
	}
	if number != 0 {
		t.set(t.putRouteBehind(n, metric, t.row(n).table), number)
	}
}

// wanted is the row of the route that is wanted in the place which row n is the first one of, 0 if none is.
func (t *table) wanted(n uint32) uint32 {
	for in := t.row(n).table; n != 0; n = t.row(n).next {
		if r := t.row(n); r.want != 0 && r.table == in {
			return n
		}
	}
	return 0
}

// Observe records that the kernel has a route, whichever program put it there.
func (t *table) Observe(r *kernel.Route) { t.observe(t.putRoute(r.Key()), t.number(r)) }

func (t *table) observe(n, number uint32) {
	r := t.row(n)
	if r.want == 0 && r.have == 0 {
		r.flags |= rowAdopted
	}
	t.drift(n, number)
	r.have = number
	t.touch(n)
}

// ObserveGone records that the kernel does not have a route any more.
func (t *table) ObserveGone(k kernel.RouteKey) { t.observeGone(t.route(k)) }

func (t *table) observeGone(n uint32) {
	if n == 0 || t.row(n).have == 0 {
		return
	}
	t.drift(n, 0)
	t.row(n).have = 0
	t.touch(n)
}

// drift marks a route that was as desired, or absent, and that others have changed or removed (0).
func (t *table) drift(n, number uint32) {
	r := t.row(n)
	drifted := false
	switch {
	case r.is(rowDirty): // a change of our own is on its way
		return
	case r.want != 0:
		drifted = t.same(r.want, r.have) && !t.same(r.want, number)
	default: // routes found first, or before pruning is allowed, are left from an earlier run
		drifted = t.compared && t.prune && number != 0 && r.have == 0
	}
	r.flags &^= rowDrifted
	if drifted {
		r.flags |= rowDrifted
	}
}

// Retry makes the next Flush try a route again, if it failed.
func (t *table) Retry(k kernel.RouteKey) {
	if n := t.route(k); n != 0 && t.failed.Of(n) != nil {
		t.touch(n)
	}
}

// RetryAll makes the next Flush try everything that failed, without waiting for its time; how long later attempts wait
// starts again from the shortest time.
func (t *table) RetryAll() { t.failed.All(t.touch) }

// Prune sets whether unwanted routes of earlier runs may be removed.
func (t *table) Prune(allowed bool) {
	if allowed && !t.prune {
		for n := range t.All() {
			if t.row(n).is(rowAdopted) {
				t.touch(n)
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
		n, number := t.putRoute(own[i].Key()), t.number(&own[i])
		if r := t.row(n); r.is(rowSeen) {
			continue
		} else if r.have == 0 || !t.same(r.have, number) {
			t.observe(n, number)
		}
		t.row(n).flags |= rowSeen
	}
	for n := range t.All() {
		if r := t.row(n); r.is(rowSeen) {
			r.flags &^= rowSeen
		} else if r.have != 0 {
			t.observeGone(n)
		}
	}
	t.compared = true
	return nil
}

func (t *table) touch(n uint32) {
	t.note(n)
	if r := t.row(n); !r.is(rowDirty) {
		r.flags |= rowDirty
		t.dirty = append(t.dirty, n)
	}
}

// Get returns a route as it is in the kernel; ok is false if it is not there.
func (t *table) Get(k kernel.RouteKey) (r kernel.Route, ok bool) {
	n := t.route(k)
	if n == 0 || t.row(n).have == 0 {
		return kernel.Route{}, false
	}
	return t.has(n), true
}

// Status returns the state of a route; its Phase is empty if it is neither wanted nor there.
func (t *table) Status(k kernel.RouteKey) reconcile.Status {
	if n := t.route(k); n != 0 {
		return t.status(n)
	}
	return reconcile.Status{}
}

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
	return reconcile.Facts{Wanted: r.want != 0, Present: r.have != 0, AsWanted: t.same(r.want, r.have),
		Adopted: r.is(rowAdopted), Failure: t.failed.Of(n)}
}

// All visits the rows of all routes that are wanted or there.
func (t *table) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for n := range t.rows.All() {
			if t.row(n).is(rowRoute) && !yield(n) {
				return
			}
		}
	}
}

// Len is the number of routes that are wanted or there.
func (t *table) Len() int { return t.routes }

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
		for n := range t.All() {
			r := t.row(n)
			if r.want != 0 && !yield(r.want) || r.have != 0 && !yield(r.have) {
				return
			}
		}
	})
	return true
}
