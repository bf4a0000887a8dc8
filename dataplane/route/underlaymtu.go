package route

import (
	"maps"
	"net/netip"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/model"
)

// FollowUnderlay sets a function that Flush calls with the network between the nodes when it has changed. Call it
// before the first Flush.
func (t *Target) FollowUnderlay(changed func(hoststate.Underlay)) {
	t.underlayChanged, t.lastUnderlay.Unread = changed, true
}

// FollowRoutesOfOthers sets a function that Flush calls when WayTo may have changed. Call it before the first Flush.
func (t *Target) FollowRoutesOfOthers(changed func()) { t.waysChanged = changed }

// publishUnderlay passes the network between the nodes on if it has changed.
func (t *Target) publishUnderlay() {
	if t.waysChanged != nil {
		t.waysChanged()
	}
	if t.underlayChanged == nil {
		return
	}
	now := hoststate.Underlay{MTU: t.rules.underlayMTU()}
	if now.MTU == 0 {
		now.MTU = t.lastUnderlay.MTU // routes come back, and an MTU that flaps stays with the pods of the meantime
	}
	if now != t.lastUnderlay {
		t.lastUnderlay = now
		t.underlayChanged(now)
	}
}

// leastUnderlay is the size of a packet below which a single Node does not lower the MTU of all: each host of IPv6
// takes it (RFC 8200).
const leastUnderlay = 1280

// underlayMTU is hoststate.Underlay.MTU.
func (r *rules) underlayMTU() int {
	smallest := 0
	count := func(a netip.Addr) {
		if mtu := r.wayTo(a).MTU; mtu > 0 && (smallest == 0 || mtu < smallest) {
			smallest = max(mtu, leastUnderlay)
		}
	}
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		for name, a := range r.vteps(f).Addresses() {
			if name != r.node && !r.own.Has(a) {
				count(a)
			}
		}
	}
	if smallest == 0 {
		count(r.config.Node4.Addr())
		count(r.config.Node6.Addr())
	}
	return smallest
}

// Way is how this host's packets get to another one.
type Way struct {
	// Hop is the first one of the route.
	Hop kernel.NextHop
	// Link is the MTU of the interface, and MTU that of the route, which is not larger. Of several the smallest counts.
	Link, MTU int
}

// WayTo returns the way to another host with an address, without the routes of this node: the zero value if no route
// leads there.
func (t *Target) WayTo(a netip.Addr) Way { return t.rules.wayTo(a) }

// SetPaths takes over the sizes of the largest packets that get to other nodes, by their addresses, where they are
// known. The map must not be changed any more.
func (t *Target) SetPaths(paths map[netip.Addr]int) {
	if !maps.Equal(t.rules.paths, paths) {
		t.rules.paths, t.changedLinks = paths, true
	}
}

// wayTo is WayTo.
func (r *rules) wayTo(a netip.Addr) (w Way) {
	if !a.IsValid() {
		return Way{}
	}
	route, ok := r.rib.lookup(a, r.usable)
	if !ok || route.Type != kernel.Unicast {
		return Way{}
	}
	for _, h := range route.NextHops {
		l := r.links[h.Link]
		// The MTU of a device follows from this.
		if !l.Up || overlay.IsDevice(l.Name) || r.isWorkload(h.Link) || l.Name == "lo" {
			continue
		}
		if w.Link == 0 {
			w.Hop = h
		}
		if w.Link == 0 || l.MTU < w.Link {
			w.Link = l.MTU
		}
	}
	w.MTU = min(w.Link, limitOf(route))
	return w
}

// limitOf is the size of the largest packet that takes a route whatever its interface.
func limitOf(r kernel.Route) int {
	if r.MTU == 0 {
		return 1 << 16
	}
	return int(r.MTU)
}
