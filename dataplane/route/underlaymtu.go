package route

import (
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

// publishUnderlay passes the network between the nodes on if it has changed.
func (t *Target) publishUnderlay() {
	if t.underlayChanged == nil {
		return
	}
	if now := (hoststate.Underlay{MTU: t.rules.underlayMTU()}); now != t.lastUnderlay {
		t.lastUnderlay = now
		t.underlayChanged(now)
	}
}

// underlayMTU is hoststate.Underlay.MTU.
func (r *rules) underlayMTU() int {
	smallest := 0
	count := func(a netip.Addr) {
		if mtu := r.mtuTowards(a); mtu > 0 && (smallest == 0 || mtu < smallest) {
			smallest = mtu
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

// mtuTowards is the size of the largest packet that this host sends to another one with an address, by the route there
// and its interfaces; 0: no route leads there. Of several ways the smallest counts.
func (r *rules) mtuTowards(a netip.Addr) int {
	if !a.IsValid() {
		return 0
	}
	route, ok := r.rib.lookup(a, r.usable)
	if !ok || route.Type != kernel.Unicast {
		return 0
	}
	mtu := 0
	for _, h := range route.NextHops {
		l := r.links[h.Link]
		if !l.Up || overlay.IsDevice(l.Name) { // whose MTU follows from this
			continue
		}
		if here := min(l.MTU, limitOf(route)); mtu == 0 || here < mtu {
			mtu = here
		}
	}
	return mtu
}

// limitOf is the size of the largest packet that takes a route whatever its interface.
func limitOf(r kernel.Route) int {
	if r.MTU == 0 {
		return 1 << 16
	}
	return int(r.MTU)
}
