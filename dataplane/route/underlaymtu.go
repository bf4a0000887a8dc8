package route

import (
	"maps"
	"net/netip"
	"slices"

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
	if t.changedUnderlay {
		t.countAllNodes()
		if t.waysChanged != nil {
			t.waysChanged()
		}
	} else {
		for k := range t.changedNodes {
			t.countNode(k)
		}
	}
	t.changedUnderlay = false
	clear(t.changedNodes)
	if t.underlayChanged == nil {
		return
	}
	now := hoststate.Underlay{MTU: t.underlayMTU()}
	if now.MTU == 0 {
		now.MTU = t.lastUnderlay.MTU // routes come back, and an MTU that flaps stays with the pods of the meantime
	}
	if now != t.lastUnderlay {
		t.lastUnderlay = now
		t.underlayChanged(now)
	}
}

// nodeMTUs has the MTUs of the ways to the other nodes, so that the change of one node costs the lookup of one way.
type nodeMTUs struct {
	of    map[endpointKey]int
	nodes map[int]int // how many have an MTU
}

func newNodeMTUs() nodeMTUs { return nodeMTUs{of: map[endpointKey]int{}, nodes: map[int]int{}} }

// set takes over the MTU of the way to a node; 0: there is none.
func (m nodeMTUs) set(k endpointKey, mtu int) {
	if old := m.of[k]; old > 0 {
		if m.nodes[old]--; m.nodes[old] == 0 {
			delete(m.nodes, old)
		}
	}
	if delete(m.of, k); mtu > 0 {
		m.of[k] = mtu
		m.nodes[mtu]++
	}
}

// smallest is 0 without a node.
func (m nodeMTUs) smallest() (smallest int) {
	for mtu := range m.nodes {
		if smallest == 0 || mtu < smallest {
			smallest = mtu
		}
	}
	return smallest
}

func (t *Target) countAllNodes() {
	t.nodeMTUs = newNodeMTUs()
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		for name := range t.rules.vteps(f).Addresses() {
			t.countNode(endpointKey{name, f})
		}
	}
}

func (t *Target) countNode(k endpointKey) {
	mtu := 0
	if a := t.rules.vteps(k.family).Address(k.node); k.node != t.rules.node && !t.rules.own.Has(a) {
		mtu = t.mtuTo(a)
	}
	t.nodeMTUs.set(k, mtu)
}

// leastUnderlay is the size of a packet below which a single Node does not lower the MTU of all: each host of IPv6
// takes it (RFC 8200).
const leastUnderlay = 1280

// underlayMTU is hoststate.Underlay.MTU.
func (t *Target) underlayMTU() int {
	smallest := t.nodeMTUs.smallest()
	if smallest == 0 {
		for _, own := range []netip.Prefix{t.rules.config.Node4, t.rules.config.Node6} {
			if mtu := t.mtuTo(own.Addr()); mtu > 0 && (smallest == 0 || mtu < smallest) {
				smallest = mtu
			}
		}
	}
	if smallest == 0 {
		return 0
	}
	return max(smallest, leastUnderlay)
}

// Way is how this host's packets get to another one.
type Way struct {
	// Hops are those that packets may take.
	Hops []kernel.NextHop
	// Link is the MTU of the interface, and MTU that of the route, which is not larger. Of several the smallest counts.
	Link, MTU int
}

// Equal reports whether two ways do not differ.
func (w Way) Equal(o Way) bool {
	return w.Link == o.Link && w.MTU == o.MTU && slices.Equal(w.Hops, o.Hops)
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
		w.Hops = append(w.Hops, h)
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
