package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/ippool"
)

// hop is the resolution of one BGP next hop, shared by all routes through it: the ways to it that some route needs.
type hop struct {
	ways  []*way
	outer *way // without a tunnel, for the packets of tunnels; nil: not resolved yet
}

// way is how packets get to a next hop: through a tunnel device, or directly.
type way struct {
	device string // directly, or the name of a tunnel device
	hops   []kernel.NextHop
	mtu    uint32 // of packets that reach the next hop, where it is less than that of an interface; else 0
	reason string // why there are none; empty also for a tunnel device that is to come, or to come up
}

// directly is the way without a tunnel.
const directly = ""

// reach returns the shared resolution of nh, through a tunnel device or directly.
func (r *rules) reach(nh netip.Addr, device string) *way {
	h := r.hops[nh]
	if h == nil {
		h = &hop{}
		r.hops[nh] = h
	}
	for _, w := range h.ways {
		if w.device == device {
			return w
		}
	}
	w := r.resolveWay(nh, device)
	h.ways = append(h.ways, w)
	r.nearby.changed = true
	return w
}

// refresh resolves all ways to nh anew, and reports whether one differs.
func (r *rules) refresh(nh netip.Addr, h *hop) (changed bool) {
	h.outer = nil
	for i, old := range h.ways {
		if w := r.resolveWay(nh, old.device); !w.equal(old) {
			h.ways[i], changed = w, true
		}
	}
	return changed
}

// refreshVTEP resolves the ways to a node by its tunnel endpoint anew.
func (r *rules) refreshVTEP(node netip.Addr) {
	h := r.hops[node]
	if h == nil {
		return
	}
	for i, old := range h.ways {
		if overlay.HasVTEPs(old.device) {
			h.ways[i], r.nearby.changed = r.resolveWay(node, old.device), true
		}
	}
}

func (r *rules) resolveWay(nh netip.Addr, device string) *way {
	w := r.findWay(nh, device)
	w.mtu = r.narrowed(nh, w)
	return w
}

// narrowed is way.mtu. Packets through a gateway of the host go on to others: its own path says nothing of theirs, also
// if a Node has its address.
func (r *rules) narrowed(nh netip.Addr, w *way) uint32 {
	path := r.paths[nh]
	if path == 0 || w.device == directly && r.isGateway(nh) {
		return 0
	}
	mtu := overlay.InnerMTU(w.device, path)
	if !slices.ContainsFunc(w.hops, func(h kernel.NextHop) bool { return r.links[h.Link].MTU > mtu }) {
		return 0
	}
	return uint32(mtu)
}

func (r *rules) findWay(nh netip.Addr, device string) *way {
	if device == directly {
		return r.resolveDirectly(nh)
	}
	w := &way{device: device}
	if err := r.missing[device]; err != nil {
		w.reason = err.Error()
	} else if r.own.Has(nh) {
		w.reason = fmt.Sprintf("next hop %s is this node itself", nh)
	} else if gateway, err := r.gatewayOn(device, nh); err != nil {
		w.reason = err.Error()
	} else if l, ok := r.link(device); ok && l.Up {
		w.hops = []kernel.NextHop{{Gateway: gateway, Link: l.Index, OnLink: true}}
	}
	return w
}

func (r *rules) resolveDirectly(nh netip.Addr) *way {
	w := &way{device: directly}
	if l, ok := r.link(r.workloadAt(nh)); ok && l.Up {
		w.hops = []kernel.NextHop{{Gateway: nh, Link: l.Index}} // a workload that speaks BGP itself
		return w
	}
	via := r.gatewayTo(nh) // our own route to a peer is not among those of others
	if !via.IsValid() {
		via = nh
	}
	w.hops, w.reason = r.resolve(via)
	return w
}

func (w *way) equal(o *way) bool {
	return w.device == o.device && w.reason == o.reason && w.mtu == o.mtu && slices.Equal(w.hops, o.hops)
}

// missing returns why the addresses of a pool cannot be reached through the tunnel device.
func (w *way) missing(pool *ippool.Pool) string {
	if w.reason != "" {
		return fmt.Sprintf("%s; pool %s cannot be used on this node", w.reason, pool.Name)
	}
	return fmt.Sprintf("pool %s uses %v, and interface %s is not up (yet)", pool.Name, pool.Encapsulation(), w.device)
}
