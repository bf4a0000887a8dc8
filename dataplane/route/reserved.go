package route

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// noUnicast are ranges whose addresses are no host's, beside those that netip knows (RFC 6890).
var noUnicast = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4")}

// reserved returns why an address is never routed to a workload, whoever wrote that the workload has it; empty if it
// may be. A route of this host to one of its own correspondents, such as its gateway, would cut the host off and hand
// the traffic to the workload.
func (r *rules) reserved(a netip.Addr) string {
	switch {
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a.IsLinkLocalUnicast(), inAny(noUnicast, a):
		return "it is in a range that no workload can have (RFC 6890)"
	case r.own.Has(a):
		return "it is an address of this host"
	case r.config.IsNode != nil && r.config.IsNode(a) && !inAny(r.config.Blocks, a):
		return "it is an address of a node of the cluster" // in the host's own blocks, IPAM decides whose it is
	case r.isGateway(a):
		return "it is a gateway of this host"
	case r.servers[a] != "":
		return "it is the address of " + r.servers[a]
	case r.config.Pools.OfAddress(a) != nil: // an administrator gives addresses of the pool to workloads
		return ""
	case slices.Contains(r.peers, a):
		return "it is a BGP peer, and in no IP pool"
	}
	if p := r.subnet(a); p.IsValid() {
		return fmt.Sprintf("it is in subnet %s of this host, and in no IP pool", p)
	}
	return ""
}

// subnet returns the subnet of this host that an address is in, invalid if it is in none. The interfaces of workloads
// do not count.
func (r *rules) subnet(a netip.Addr) netip.Prefix {
	route, ok := r.rib.lookup(a, func(route kernel.Route) bool { return r.isSubnet(route) })
	if !ok {
		return netip.Prefix{}
	}
	return route.Dst
}

// isSubnet reports whether a route of the host leads to hosts that are on one of its links.
func (r *rules) isSubnet(route kernel.Route) bool {
	return route.Type == kernel.Unicast && route.Dst.Bits() > 0 && !route.Dst.IsSingleIP() &&
		!slices.ContainsFunc(route.NextHops, func(h kernel.NextHop) bool {
			return h.Gateway.IsValid() || r.isWorkload(h.Link)
		})
}

func inAny(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// isGateway reports whether a route of the host leads through an address. A gateway behind a workload's interface is
// that workload, by an operator's choice.
func (r *rules) isGateway(a netip.Addr) bool {
	for hop := range r.rib.gateways {
		if hop.Gateway == a && !r.isWorkload(hop.Link) {
			return true
		}
	}
	return false
}

// correspondentsChanged decides again about workloads that claim the gateways of a route of the host, or an address in
// its subnet.
func (t *Target) correspondentsChanged(r kernel.Route) {
	if t.rules.isSubnet(r) {
		t.decideWorkloadsAgain()
		return
	}
	for _, h := range r.NextHops {
		if h.Gateway.IsValid() {
			t.decideAgain(netip.PrefixFrom(h.Gateway, h.Gateway.BitLen()))
		}
	}
}

// decideWorkloadsAgain decides again about the addresses of all workloads.
func (t *Target) decideWorkloadsAgain() {
	for name := range t.byLink {
		t.decideLinkAgain(name)
	}
}

// Notices lists the addresses that workloads of this host claim and do not get, and source addresses of routes to
// workloads that are not used.
func (t *Target) Notices() (list []reconcile.Notice) {
	for _, a := range []netip.Addr{t.rules.config.WorkloadSource4, t.rules.config.WorkloadSource6} {
		if a.IsValid() && t.resync.listed && !t.rules.own.Has(a) {
			list = append(list, reconcile.Notice{Subject: "FelixConfiguration", Text: fmt.Sprintf(
				"the source address %s of routes to workloads (deviceRouteSourceAddress) is none of this host's: "+
					"the kernel chooses one", a)})
		}
	}
	for _, e := range t.rules.config.Endpoints {
		for _, text := range e.Refusals {
			list = append(list, reconcile.Notice{Subject: "WorkloadEndpoint " + e.Name, Text: text})
		}
		for _, p := range e.Addresses {
			if why := t.rules.reserved(p.Addr()); why != "" {
				list = append(list, reconcile.Notice{Subject: "WorkloadEndpoint " + e.Name, Text: fmt.Sprintf(
					"claims %s, which is not routed to a workload: %s", p.Addr(), why)})
			}
		}
	}
	return list
}
