package route

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
)

// rib holds the routes of others in our tables; those of main for longest prefix match.
type rib struct {
	routes map[netip.Prefix][]kernel.Route // by metric, lowest first
	bits   [2][]int                        // the prefix lengths in use, longest first; IPv4 and IPv6
	count  [2][129]int
	// gateways counts the routes through each next hop that has a gateway.
	gateways map[kernel.NextHop]int
}

func newRIB() *rib {
	return &rib{routes: map[netip.Prefix][]kernel.Route{}, gateways: map[kernel.NextHop]int{}}
}

// countGateways adds the next hops of a route to those in use, or removes them.
func (t *rib) countGateways(r kernel.Route, change int) {
	for _, h := range r.NextHops {
		if !h.Gateway.IsValid() {
			continue
		}
		if t.gateways[h] += change; t.gateways[h] == 0 {
			delete(t.gateways, h)
		}
	}
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// put adds r in place of the one that the kernel would replace.
func (t *rib) put(r kernel.Route) {
	list := t.routes[r.Dst]
	t.countGateways(r, +1)
	if i := slices.IndexFunc(list, func(o kernel.Route) bool { return sameEntry(o, r) }); i >= 0 {
		t.countGateways(list[i], -1)
		list[i] = r
		return
	}
	i := slices.IndexFunc(list, func(o kernel.Route) bool { return o.Metric > r.Metric })
	if i < 0 {
		i = len(list)
	}
	t.routes[r.Dst] = slices.Insert(list, i, r)
	if len(list) == 0 {
		t.length(r.Dst, 1)
	}
}

// remove reports whether it found r.
func (t *rib) remove(r kernel.Route) bool {
	list := t.routes[r.Dst]
	i := slices.IndexFunc(list, func(o kernel.Route) bool { return sameEntry(o, r) && o.Protocol == r.Protocol })
	if i < 0 {
		return false
	}
	t.countGateways(list[i], -1)
	if list = slices.Delete(list, i, i+1); len(list) > 0 {
		t.routes[r.Dst] = list
		return true
	}
	delete(t.routes, r.Dst)
	t.length(r.Dst, -1)
	return true
}

// sameEntry: IPv4 has one route for each metric of a table. IPv6 has as many as there are links, such as those to
// fe80::/64.
func sameEntry(a, b kernel.Route) bool {
	if a.Metric != b.Metric || a.Table != b.Table {
		return false
	}
	if a.Dst.Addr().Is4() || len(a.NextHops) == 0 || len(b.NextHops) == 0 {
		return true
	}
	return a.NextHops[0].Link == b.NextHops[0].Link
}

func (t *rib) length(p netip.Prefix, change int) {
	f := family(p.Addr())
	n := &t.count[f][p.Bits()]
	*n += change
	switch {
	case change > 0 && *n == 1:
		t.bits[f] = append(t.bits[f], p.Bits())
		slices.SortFunc(t.bits[f], func(a, b int) int { return b - a })
	case *n == 0:
		t.bits[f] = slices.DeleteFunc(t.bits[f], func(b int) bool { return b == p.Bits() })
	}
}

// holder returns the route that occupies a key.
func (t *rib) holder(k kernel.RouteKey) (kernel.Route, bool) {
	for _, r := range t.routes[k.Dst] {
		if r.Metric == k.Metric && r.Table == k.Table {
			return r, true
		}
	}
	return kernel.Route{}, false
}

// lookup returns the best route to a in main, among those that usable accepts.
func (t *rib) lookup(a netip.Addr, usable func(kernel.Route) bool) (kernel.Route, bool) {
	for _, bits := range t.bits[family(a)] {
		p, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		for _, r := range t.routes[p] {
			if r.Table == kernel.MainTable && usable(r) {
				return r, true
			}
		}
	}
	return kernel.Route{}, false
}
