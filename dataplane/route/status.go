package route

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/livemigration"
)

// Statuses returns all routes for users, sorted by prefix and table: the desired ones, and those in the kernel
// that are not desired.
func (t *Target) Statuses() []Status {
	type found struct {
		place
		row uint32
	}
	var list []found
	for p, n := range t.places() {
		list = append(list, found{p, n})
	}
	slices.SortFunc(list, func(a, b found) int { return a.compare(b.place) })
	rows := make([]Status, 0, len(list))
	for _, f := range list {
		rows = append(rows, t.line(f.row))
	}
	return rows
}

// places visits the first row of each place that is desired or has a route.
func (t *Target) places() iter.Seq2[place, uint32] {
	return func(yield func(place, uint32) bool) {
		for n := range t.table.rows.All() {
			if !t.table.row(n).is(rowFirst) {
				continue
			}
			seen := kernel.MainTable
			for m := n; m != 0; m = t.table.row(m).next {
				r := t.table.row(m)
				if m != n && (r.table == kernel.MainTable || r.table == seen) || !r.desired() && t.anyRoute(m) == 0 {
					continue
				}
				seen = r.table
				if !yield(place{t.table.rows.Prefix(m), r.table}, m) {
					return
				}
			}
		}
	}
}

// anyRoute is the row of a route in the place that row n is the first one of, 0 if there is none.
func (t *Target) anyRoute(n uint32) uint32 {
	for m := range t.table.rows.ofPlace(n) {
		return m
	}
	return 0
}

// Counts returns how many prefixes, counted in each table, are in each phase: a summary of Statuses, at a fraction of
// the cost.
func (t *Target) Counts() map[reconcile.Phase]int {
	counts := map[reconcile.Phase]int{}
	for _, n := range t.places() {
		if r := t.table.row(n); r.desired() {
			counts[t.phase(n)]++
		} else {
			phase, _ := t.table.facts(t.anyRoute(n)).Phase()
			counts[phase]++
		}
	}
	return counts
}

// Status returns the row of a prefix in main, false if there is none.
func (t *Target) Status(p netip.Prefix) (Status, bool) {
	n := t.table.rows.findPlace(inMain(p))
	if n == 0 || !t.table.row(n).desired() {
		return Status{}, false
	}
	return t.line(n), true
}

// Towards returns the row of the most specific prefix of main with an address for which the kernel has a route, false
// if there is none. Its cost does not follow the number of routes.
func (t *Target) Towards(a netip.Addr) (Status, bool) {
	for bits := a.BitLen(); bits >= 0; bits-- {
		p, err := a.Prefix(bits)
		if err != nil {
			break
		}
		if n := t.table.rows.findPlace(inMain(p)); n != 0 {
			if row := t.line(n); len(row.Actual) > 0 {
				return row, true
			}
		}
	}
	return Status{}, false
}

// line returns the Status of the place whose first row is n.
func (t *Target) line(n uint32) Status {
	row := Status{Prefix: t.table.rows.Prefix(n), Table: t.table.row(n).table}
	desired := uint32(0)
	if t.table.row(n).desired() {
		s := t.stateOf(n)
		row.Source = t.rules.source(row.Prefix, &s)
		row.NextHops = s.learned
		if row.Source == SourceStatic {
			row.NextHops = []netip.Addr{s.via()}
		}
		if row.Source == SourceIPAM {
			row.NextHops = nil
			if a := t.rules.vteps(familyOf(row.Prefix)).Address(cmp.Or(s.tunnel, s.remote)); a.IsValid() {
				row.NextHops = []netip.Addr{a}
			}
		}
		if len(s.endpoints) > 0 {
			row.Endpoint = t.rules.holder(s.endpoints).Name
		}
		row.Status = t.statusOf(n)
		if desired = t.table.desiredIn(n); desired != 0 {
			row.Desired = t.table.wanted(desired).Text(t.rules.linkName)
			t.addActual(&row, desired)
		}
	}
	for m := range t.table.rows.ofPlace(n) {
		if m == desired {
			continue
		}
		t.addActual(&row, m)
		if row.Phase == "" {
			row.Status = t.table.status(m)
		}
	}
	return row
}

// addActual adds the route that row n has in the kernel, if any.
func (t *Target) addActual(s *Status, n uint32) {
	if t.table.row(n).have == 0 {
		return
	}
	r := t.table.actual(n)
	if len(s.Actual) == 0 && len(r.NextHops) > 0 {
		s.Interface = t.rules.linkName(r.NextHops[0].Link)
	}
	s.Actual = append(s.Actual, r.Text(t.rules.linkName))
}

// statusOf returns the status of a desired place.
func (t *Target) statusOf(n uint32) reconcile.Status {
	s := t.stateOf(n)
	desired := t.table.desiredIn(n)
	if desired == 0 {
		return reconcile.Status{Phase: t.phase(n), Reason: s.note, Since: s.since}
	}
	status := t.table.status(desired)
	if status.Reason == "" {
		status.Reason = s.note
	}
	return status
}

// phase returns the phase of a desired place.
func (t *Target) phase(n uint32) reconcile.Phase {
	if desired := t.table.desiredIn(n); desired != 0 {
		phase, _ := t.table.facts(desired).Phase()
		return phase
	}
	if t.stateOf(n).note == "" {
		return reconcile.Pending
	}
	return reconcile.Blocked
}

// ServesEndpoint reports whether the kernel has the route to an address of the endpoint of that name (namespace/name),
// or another program is to make it.
func (t *Target) ServesEndpoint(p netip.Prefix, name string) bool {
	n := t.table.rows.findPlace(inMain(p))
	if n == 0 {
		return false
	}
	s := t.stateOf(n)
	return len(s.endpoints) > 0 && t.rules.holder(s.endpoints).Name == name &&
		(t.phase(n) == reconcile.Applied || t.rules.config.LeaveWorkloads ||
			t.rules.moves[name] == livemigration.Arriving)
}

// LeadThrough reports whether the kernel has routes of this node through an interface, or some are desired.
func (t *Target) LeadThrough(name string) bool {
	l, ok := t.rules.link(name)
	through := func(h kernel.NextHop) bool { return h.Link == l.Index }
	for n := range t.table.rows.withRoute() {
		r := t.table.row(n)
		if ok && (r.have != 0 && slices.ContainsFunc(t.table.actual(n).NextHops, through) ||
			r.want != 0 && slices.ContainsFunc(t.table.wanted(n).NextHops, through)) {
			return true
		}
	}
	return false
}

// HasLink reports whether an interface is there and up.
func (t *Target) HasLink(name string) bool {
	l, ok := t.rules.link(name)
	return ok && l.Up
}
