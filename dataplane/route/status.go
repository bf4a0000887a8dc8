package route

import (
	"net/netip"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// Statuses returns the whole table as users see it, sorted by prefix: what is wanted, and what is there although nobody
// wants it.
func (t *Target) Statuses() []Status {
	extra := map[netip.Prefix][]kernel.RouteKey{}
	for k := range t.table.All() {
		if s := t.states[k.Dst]; s == nil || s.want == nil || s.want.Metric != k.Metric {
			extra[k.Dst] = append(extra[k.Dst], k)
		}
	}
	prefixes := make([]netip.Prefix, 0, len(t.states))
	for p := range t.states {
		prefixes = append(prefixes, p)
	}
	for p := range extra {
		if t.states[p] == nil {
			prefixes = append(prefixes, p)
		}
	}
	rows := make([]Status, 0, len(prefixes))
	for _, p := range sorted(prefixes) {
		rows = append(rows, t.row(p, extra[p]))
	}
	return rows
}

// Counts returns how many prefixes are in each phase: what Statuses would show, at a fraction of the cost.
func (t *Target) Counts() map[reconcile.Phase]int {
	counts := map[reconcile.Phase]int{}
	for _, s := range t.states {
		counts[t.wanted(s).Phase]++
	}
	unwanted := map[netip.Prefix]bool{}
	for k, status := range t.table.All() {
		if t.states[k.Dst] == nil && !unwanted[k.Dst] {
			unwanted[k.Dst] = true
			counts[status.Phase]++
		}
	}
	return counts
}

// Status returns the row of a prefix, false if nothing asks for it.
func (t *Target) Status(p netip.Prefix) (Status, bool) {
	if t.states[p] == nil {
		return Status{}, false
	}
	return t.row(p, nil), true
}

func (t *Target) row(p netip.Prefix, extra []kernel.RouteKey) Status {
	row := Status{Prefix: p}
	if s := t.states[p]; s != nil {
		row.Source = s.source()
		row.NextHops = s.learned
		if row.Source == SourceStatic {
			row.NextHops = []netip.Addr{s.via}
		}
		if len(s.endpoints) > 0 {
			row.Endpoint = s.endpoints[0].Name
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
	return s != nil && s.source() == SourceWorkload && s.endpoints[0].Name == name && t.wanted(s).Phase == reconcile.Applied
}
