package route

import (
	"maps"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
)

// nearby follows the neighbours that traffic of this host needs.
type nearby struct {
	changed bool // since the last publication
	publish func([]kernel.NextHop)
}

// FollowNextHops sets a function that Flush calls with the neighbours beyond workloads' interfaces that traffic of this
// host needs, when they may have changed: next hops of routes and gateways of others' routes, BGP peers and servers on
// the host's links. Call it before the first Flush.
func (t *Target) FollowNextHops(publish func([]kernel.NextHop)) {
	t.rules.nearby.publish = publish
	t.rules.nearby.changed = true
}

// publishNextHops passes the neighbours on if they may have changed.
func (t *Target) publishNextHops() {
	n := &t.rules.nearby
	if n.publish == nil || !n.changed {
		return
	}
	n.changed = false
	n.publish(t.rules.neighbours())
}

// neighbours returns the next hops that have a gateway, each once, in no order.
func (r *rules) neighbours() []kernel.NextHop {
	seen := map[kernel.NextHop]bool{}
	add := func(hops []kernel.NextHop) {
		for _, h := range hops {
			if h.OnLink = false; h.Gateway.IsValid() && !r.isWorkload(h.Link) {
				seen[h] = true
			}
		}
	}
	for nh, h := range r.hops {
		for _, w := range h.ways {
			if !overlay.HasVTEPs(w.device) { // the entries of VTEPs are not resolved
				add(w.hops)
			}
		}
		if h.outer == nil {
			h.outer = r.resolveDirectly(nh)
		}
		add(h.outer.hops) // packets in a tunnel go there, too
	}
	for h := range r.rib.gateways {
		add([]kernel.NextHop{h})
	}
	for _, a := range r.peers {
		add(r.resolveDirectly(a).hops)
	}
	for a := range r.servers {
		add(r.resolveDirectly(a).hops)
	}
	return slices.Collect(maps.Keys(seen))
}
