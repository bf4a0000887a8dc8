package route

import (
	"fmt"
	"net/netip"
	"strings"

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
	case r.config.IsNode != nil && r.config.IsNode(a):
		return "it is an address of a node of the cluster"
	case r.isGateway(a):
		return "it is a gateway of this host"
	}
	if what := r.config.Servers[a]; what != "" {
		return "it is the address of " + what
	}
	return ""
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

// gatewaysChanged decides again about workloads that claim the gateways of a route of the host.
func (t *Target) gatewaysChanged(r kernel.Route) {
	for _, h := range r.NextHops {
		if h.Gateway.IsValid() {
			t.touch(netip.PrefixFrom(h.Gateway, h.Gateway.BitLen()))
		}
	}
}

// touchWorkloads decides again about the addresses of all workloads.
func (t *Target) touchWorkloads() {
	for name := range t.byLink {
		t.touchLink(name)
	}
}

// Notices lists the addresses that workloads of this host claim and do not get.
func (t *Target) Notices() (list []reconcile.Notice) {
	for _, e := range t.rules.config.Endpoints {
		for text := range strings.Lines(e.Refusals) {
			list = append(list, reconcile.Notice{Subject: "WorkloadEndpoint " + e.Name, Text: strings.TrimSpace(text)})
		}
		for _, p := range e.prefixes() {
			if why := t.rules.reserved(p.Addr()); why != "" {
				list = append(list, reconcile.Notice{Subject: "WorkloadEndpoint " + e.Name, Text: fmt.Sprintf(
					"claims %s, which is not routed to a workload: %s", p.Addr(), why)})
			}
		}
	}
	return list
}
