package route

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Statuses returns all routes as users see them, sorted by prefix and table: what is wanted, and what is there although
// nobody wants it.
func (t *Target) Statuses() []Status {
	extra := map[place][]kernel.RouteKey{}
	for k := range t.table.All() {
		if s := t.at(placeOf(k)); s == nil || s.want == nil || s.want.Metric != k.Metric {
			extra[placeOf(k)] = append(extra[placeOf(k)], k)
		}
	}
	places := slices.AppendSeq(make([]place, 0, len(t.states)+len(t.beside)), maps.Keys(t.beside))
	for p := range t.states {
		places = append(places, place{p, kernel.MainTable})
	}
	for p := range extra {
		if t.at(p) == nil {
			places = append(places, p)
		}
	}
	slices.SortFunc(places, place.compare)
	rows := make([]Status, 0, len(places))
	for _, p := range places {
		rows = append(rows, t.row(p, extra[p]))
	}
	return rows
}

// Counts returns how many prefixes, counted in each table, are in each phase: what Statuses would show, at a fraction
// of the cost.
func (t *Target) Counts() map[reconcile.Phase]int {
	counts := map[reconcile.Phase]int{}
	for _, s := range t.states {
		counts[t.wanted(s).Phase]++
	}
	for _, s := range t.beside {
		counts[t.wanted(s).Phase]++
	}
	unwanted := map[place]bool{}
	for k, status := range t.table.All() {
		if p := placeOf(k); t.at(p) == nil && !unwanted[p] {
			unwanted[p] = true
			counts[status.Phase]++
		}
	}
	return counts
}

// Status returns the row of a prefix in main, false if nothing asks for it.
func (t *Target) Status(p netip.Prefix) (Status, bool) {
	if t.states[p] == nil {
		return Status{}, false
	}
	return t.row(place{p, kernel.MainTable}, nil), true
}

func (t *Target) row(p place, extra []kernel.RouteKey) Status {
	row := Status{Prefix: p.dst, Table: p.table}
	if s := t.at(p); s != nil {
		row.Source = s.source()
		row.NextHops = s.learned
		if row.Source == SourceStatic {
			row.NextHops = []netip.Addr{s.via()}
		}
		if len(s.endpoints) > 0 {
			row.Endpoint = t.rules.holder(s.endpoints).Name
		}
		row.Status = t.wanted(s)
		if s.want != nil {
			row.Desired = s.want.Text(t.rules.linkName)
			extra = append([]kernel.RouteKey{s.want.Key()}, extra...)
		}
	}
	for _, k := range extra {
		if _, have := t.table.Get(k); have != nil {
			row.Actual = append(row.Actual, (*have).Text(t.rules.linkName))
		}
		if row.Phase == "" {
			row.Status = t.table.Status(k)
		}
	}
	return row
}

// wanted is the status of a prefix that something asks for.
func (t *Target) wanted(s *state) reconcile.Status {
	if s.want == nil {
		status := reconcile.Status{Phase: reconcile.Blocked, Reason: s.note, Since: s.since}
		if s.note == "" {
			status.Phase = reconcile.Pending
		}
		return status
	}
	status := t.table.Status(s.want.Key())
	if status.Reason == "" {
		status.Reason = s.note
	}
	return status
}

// ServesEndpoint reports whether the kernel has the route to an address of the endpoint of that name (namespace/name).
func (t *Target) ServesEndpoint(p netip.Prefix, name string) bool {
	s := t.states[p]
	return s != nil && s.source() == SourceWorkload && t.rules.holder(s.endpoints).Name == name && t.wanted(s).Phase == reconcile.Applied
}
