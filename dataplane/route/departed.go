package route

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
)

// departure is an address that left an interface of a local workload. It gets no route before the kernel has forgotten
// the connections of that workload: established connections pass regardless of policy, also to the next one.
type departure struct {
	key      kernel.RouteKey // of the route to the workload, which goes first
	arrived  bool            // it is an address that came: nothing of this node has led to it
	returned bool
}

// note is why the address has no route yet.
func (d *departure) note() string {
	if d.arrived {
		return "the address is new on this node: the connections of whoever had it before are forgotten first"
	}
	return "the address left another workload of this node, whose connections are forgotten first"
}

// departs records which interface has the address of p, and reports whether it left another one and has to wait. route
// is the decision about p, whose row is n.
func (t *Target) departs(n uint32, p netip.Prefix, s *state, route uint32) bool {
	if t.table.row(n).table != kernel.MainTable {
		return false // workloads are reached by routes of main
	}
	if len(t.departures) > 0 && t.departures[p] != nil || !p.IsSingleIP() {
		return t.departures[p] != nil
	}
	local := t.rules.source(p, s) == SourceWorkload
	last := t.servedBy(n, p, s)
	switch {
	case local && route == 0: // the interface is down or still to come: if it is the same then, nothing happened
		if last == nil && t.rules.reserved(p.Addr()) == "" && t.arrives(n, p, s) { // meanwhile
			t.arrive(p)
		}
		return false
	case local:
		fresh := t.table.routeOf(n, route)
		link := fresh.NextHops[0].Link
		if last == nil && t.arrives(n, p, s) {
			t.arrive(p)
			return true
		}
		if last == nil || last.NextHops[0].Link == link {
			t.extrasOf(n).served, t.extrasOf(n).fresh = &fresh, false
			return false
		}
	case last == nil:
		if s.fresh {
			t.extrasOf(n).fresh = false
		}
		return false
	}
	if t.table.desiredIn(n) == 0 { // an earlier run made it, or it is gone already
		t.table.Remove(last.Key())
	}
	t.extrasOf(n).served = nil
	t.departures[p] = &departure{key: last.Key()}
	return true
}

// arrives reports whether nothing leads to an address by its workload's interface yet, so that the kernel may have
// connections of the time when it was elsewhere: they would be established for the workload. The CNI plugin forgets
// them itself where it makes the route, and a workload that another program attached keeps its connections.
func (t *Target) arrives(n uint32, p netip.Prefix, s *state) bool {
	if t.forgetter.connections == nil || s.fresh || !t.forgetter.mayInherit(p.Addr()) {
		return false
	}
	l, exists := t.rules.link(t.rules.holder(s.endpoints).Interface)
	by := func(r kernel.Route) bool {
		return r.Table == kernel.MainTable &&
			slices.ContainsFunc(r.NextHops, func(h kernel.NextHop) bool { return exists && h.Link == l.Index })
	}
	for m := n; m != 0; m = t.table.row(m).next {
		if t.table.row(m).have != 0 && by(t.table.actual(m)) {
			return false
		}
	}
	return !slices.ContainsFunc(t.rules.rib.routes[p], by)
}

func (t *Target) arrive(p netip.Prefix) {
	key := kernel.RouteKey{Dst: p, Metric: t.rules.config.workloadMetric(p.Addr())}
	t.departures[p] = &departure{key: key, arrived: true}
}

// settleArrived ends the waiting of addresses to which another program made the route, before their turn came.
func (t *Target) settleArrived() {
	for p, d := range t.departures {
		if _, there := t.table.Get(d.key); d.arrived && !d.returned && there {
			delete(t.departures, p)
			t.decideAgain(p)
		}
	}
}

// servedBy returns the last route to a local workload with the address of p: our own, or the one that an earlier run
// left.
func (t *Target) servedBy(n uint32, p netip.Prefix, s *state) *kernel.Route {
	if s.served != nil || t.table.desiredIn(n) != 0 {
		return s.served
	}
	have, ok := t.table.Get(kernel.RouteKey{Dst: p, Metric: t.rules.config.workloadMetric(p.Addr())})
	if !ok || !t.rules.toWorkload(&have) {
		return nil
	}
	return &have
}

// toWorkload reports whether a route of main leads a single address to a workload's interface.
func (r *rules) toWorkload(k *kernel.Route) bool {
	return k.Table == kernel.MainTable && k.Dst.IsSingleIP() && len(k.NextHops) == 1 && r.isWorkload(k.NextHops[0].Link)
}

// departLeftovers records the addresses whose routes of an earlier run were removed as no longer desired.
func (t *Target) departLeftovers() {
	for _, r := range t.under.removed {
		n := t.table.rows.findPlace(inMain(r.Dst))
		if t.departures[r.Dst] == nil && (n == 0 || t.table.desiredIn(n) == 0 && t.stateOf(n).served == nil) {
			t.departures[r.Dst] = &departure{key: r.Key()}
		}
	}
	t.under.removed = nil
}

// departed returns the addresses that left local workloads, or came to one, and whose routes are out of the kernel,
// each once: now their connections are to be forgotten, then forgotten is to be called.
func (t *Target) departed() []netip.Addr {
	var list []netip.Addr
	for p, d := range t.departures {
		if _, there := t.table.Get(d.key); !d.returned && !there {
			d.returned = true
			list = append(list, p.Addr())
		}
	}
	return list
}

// forgotten ends the waiting of addresses that departed returned: from the next Flush on they have routes again.
func (t *Target) forgotten(addresses []netip.Addr) {
	for _, a := range addresses {
		p := netip.PrefixFrom(a, a.BitLen())
		delete(t.departures, p)
		if n := t.table.rows.findPlace(inMain(p)); n != 0 && len(t.stateOf(n).endpoints) > 0 {
			t.extrasOf(n).fresh = true
		}
		t.decideAgain(p)
	}
}
