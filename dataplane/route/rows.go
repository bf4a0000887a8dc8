package route

import (
	"iter"
	"net/netip"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/prefixtable"
)

// rows finds the rows of places and routes. Those of one prefix are a list, whose first row is of main. In it the first
// row of a place has what is known of the place, and each row has at most one route. Row 0 is none.
type rows struct {
	*prefixtable.Table[row]
	routes int // rows that have one
}

// findPlace returns the first row of a place, 0 if there is none.
func (r *rows) findPlace(p place) uint32 {
	n := r.Find(p.dst)
	for n != 0 && r.Row(n).table != p.table {
		n = r.Row(n).next
	}
	return n
}

// putPlace returns the first row of a place, and makes it if there is none.
func (r *rows) putPlace(p place) uint32 {
	n := r.first(p.dst)
	for r.Row(n).table != p.table {
		if r.Row(n).next == 0 {
			return r.appendTo(n, p.table)
		}
		n = r.Row(n).next
	}
	return n
}

// findRoute returns the row of a route, 0 if it is neither desired nor there.
func (r *rows) findRoute(k kernel.RouteKey) uint32 {
	return r.findRouteFrom(r.Find(k.Dst), k.Metric, k.Table)
}

// findRouteFrom searches in the list that begins with row n.
func (r *rows) findRouteFrom(n, metric uint32, in kernel.Table) uint32 {
	for ; n != 0; n = r.Row(n).next {
		if x := r.Row(n); x.is(rowRoute) && x.metric == metric && x.table == in {
			return n
		}
	}
	return 0
}

// putRoute returns the row of a route, and makes it if there is none.
func (r *rows) putRoute(k kernel.RouteKey) uint32 {
	return r.putRouteFrom(r.first(k.Dst), k.Metric, k.Table)
}

// putRouteFrom searches in the list that begins with row n.
func (r *rows) putRouteFrom(n, metric uint32, in kernel.Table) uint32 {
	if found := r.findRouteFrom(n, metric, in); found != 0 {
		return found
	}
	for r.Row(n).is(rowRoute) || r.Row(n).table != in {
		if r.Row(n).next == 0 {
			n = r.appendTo(n, in)
			break
		}
		n = r.Row(n).next
	}
	x := r.Row(n)
	x.flags |= rowRoute
	x.metric = metric
	r.routes++
	return n
}

// first returns the first row of a prefix, and makes it if there is none.
func (r *rows) first(p netip.Prefix) uint32 {
	n := r.Put(p)
	r.Row(n).flags |= rowFirst
	return n
}

// appendTo makes another row of the same prefix after n, the last one.
func (r *rows) appendTo(n uint32, in kernel.Table) uint32 {
	m := r.Beside(n)
	r.Row(m).table = in
	r.Row(n).next = m
	return m
}

// dropRoute makes a row one without a route.
func (r *rows) dropRoute(n uint32) {
	x := r.Row(n)
	if x.is(rowRoute) {
		r.routes--
	}
	x.flags &^= rowRoute | rowAdopted | rowDrifted
	x.metric, x.since, x.revision = 0, wide{}, wide{}
	r.release(n)
}

// release removes a row that nothing is known of any more.
func (r *rows) release(n uint32) {
	x := r.Row(n)
	switch {
	case x.desired() || x.is(rowRoute|rowDirty):
	case !x.is(rowFirst):
		first := r.Find(r.Prefix(n))
		before := first
		for r.Row(before).next != n {
			before = r.Row(before).next
		}
		r.Row(before).next = x.next
		r.Remove(n)
		r.release(first)
	case x.next == 0:
		r.Remove(n)
	}
}

// withRoute visits the rows that have a route.
func (r *rows) withRoute() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for n := range r.All() {
			if r.Row(n).is(rowRoute) && !yield(n) {
				return
			}
		}
	}
}

// ofPlace visits the rows of the routes in the place that row n is the first one of.
func (r *rows) ofPlace(n uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for in := r.Row(n).table; n != 0; n = r.Row(n).next {
			if x := r.Row(n); x.is(rowRoute) && x.table == in && !yield(n) {
				return
			}
		}
	}
}
