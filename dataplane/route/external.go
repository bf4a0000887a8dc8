package route

import (
	"slices"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
)

// externalGrace is how long routes of other programs to a workload's interface are left alone after it appeared: a CNI
// plugin makes them before the datastore has the workload.
const externalGrace = 10 * time.Second

// ontoWorkloads reports whether a route leads to workload interfaces alone.
func (r *rules) ontoWorkloads(k *kernel.Route) bool {
	return len(k.NextHops) > 0 &&
		!slices.ContainsFunc(k.NextHops, func(h kernel.NextHop) bool { return !r.isWorkload(h.Link) })
}

// isExternal reports whether a route of another program to workload interfaces is to be removed. Those that the kernel
// makes itself stay. So do IPv6 routes that share their key with one to elsewhere: a removal might meet that one.
func (r *rules) isExternal(k *kernel.Route) bool {
	if !r.config.RemoveExternal || k.Table != kernel.MainTable || k.Type != kernel.Unicast ||
		k.Protocol == kernel.ProtocolBIRD || k.Protocol == kernel.ProtocolKernel || !r.ontoWorkloads(k) {
		return false
	}
	if a := k.Dst.Addr(); a.IsLinkLocalUnicast() || a.IsMulticast() {
		return false
	}
	for _, h := range k.NextHops {
		if _, young := r.newcomers[h.Link]; young {
			return false
		}
	}
	return k.Dst.Addr().Is4() || !slices.ContainsFunc(r.rib.routes[k.Dst], func(o kernel.Route) bool {
		return o.Metric == k.Metric && o.Table == k.Table && !r.ontoWorkloads(&o)
	})
}

// appeared begins the grace of an interface that is new, or has a new name.
func (t *Target) appeared(l kernel.Link) {
	if old, known := t.rules.links[l.Index]; !known || old.Name != l.Name {
		t.rules.newcomers[l.Index] = t.now().Add(externalGrace)
	}
}

// endGrace ends the grace of interfaces that have been there for long enough.
func (t *Target) endGrace(now time.Time) {
	ended := false
	for link, until := range t.rules.newcomers {
		if !now.Before(until) {
			delete(t.rules.newcomers, link)
			ended = ended || t.rules.isWorkload(link)
		}
	}
	if ended {
		t.adoptExternal()
	}
}

// graceEnds returns when the next grace of a workload's interface ends; false if there is none.
func (t *Target) graceEnds() (at time.Time, ok bool) {
	for link, until := range t.rules.newcomers {
		if t.rules.config.RemoveExternal && t.rules.isWorkload(link) && (!ok || until.Before(at)) {
			at, ok = until, true
		}
	}
	return at, ok
}

// adoptExternal takes over the routes of others that are ours to change now.
func (t *Target) adoptExternal() {
	var found []kernel.Route
	for _, list := range t.rules.rib.routes {
		for _, r := range list {
			if t.under.owns(r) {
				found = append(found, r)
			}
		}
	}
	for i := range found {
		t.rules.rib.remove(found[i])
		t.table.Observe(&found[i])
		t.changedLinks = true
	}
}

// disown leaves the routes to others that are not ours to change any more.
func (t *Target) disown() {
	for n := range t.table.rows.withRoute() {
		if t.table.row(n).have == 0 {
			continue
		}
		if r := t.table.actual(n); t.rules.ontoWorkloads(&r) && !t.under.owns(r) {
			t.table.setActual(n, 0)
			t.rules.rib.put(r)
			t.changedLinks = true
		}
	}
}
