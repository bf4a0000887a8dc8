package proxyneighbour

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// key is an address for which the host answers on an interface.
type key struct {
	Interface string
	Address   netip.Addr
}

func (k key) String() string { return fmt.Sprintf("proxy neighbour %s %s", k.Interface, k.Address) }

// Link implements driver.Objects' key.
func (k key) Link() string { return k.Interface }

// enabled reports whether the host is to answer for its workloads.
func enabled(h *hoststate.Host) bool {
	l := h.Felix.LocalSubnetL2Reachability
	return l != nil && *l == "PodsAndLoadBalancers"
}

// subnetsOf returns the subnets of the host's own interfaces on which stations resolve addresses.
func subnetsOf(h *hoststate.Host, links map[string]kernel.Link, addresses []kernel.Address) map[string][]netip.Prefix {
	names := map[int]string{}
	for name, l := range links {
		if l.Up && !l.NoARP && name != "lo" && !h.Interfaces.Match(name) {
			names[l.Index] = name
		}
	}
	subnets := map[string][]netip.Prefix{}
	for _, a := range addresses {
		if name := names[a.Link]; name != "" && !a.Prefix.IsSingleIP() && !a.Prefix.Addr().IsLinkLocalUnicast() {
			subnets[name] = append(subnets[name], a.Prefix.Masked())
		}
	}
	return subnets
}

// desired returns the addresses of workloads in pools without encapsulation, on the interfaces whose subnet has them.
// No other address counts: a workload could take that of a router. routed reports whether the host has the route to an
// address of a workload.
func desired(h *hoststate.Host, subnets map[string][]netip.Prefix,
	routed func(model.Key, netip.Prefix) bool) map[key]string {
	if len(subnets) == 0 {
		return nil
	}
	want, pools := map[key]string{}, h.PoolTable()
	for k, w := range h.Usable() {
		for _, p := range w.Networks {
			pool := pools.Of(p)
			if !h.Connects(w.Interface) || !p.IsSingleIP() || pool == nil ||
				pool.IPIP != ippool.Never || pool.VXLAN != ippool.Never {
				continue
			}
			for name, list := range subnets {
				if within(list, p.Addr()) && routed(k, p) {
					want[key{name, p.Addr()}] = ""
				}
			}
		}
	}
	return want
}

func within(subnets []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) })
}

// unanswered returns the first pool for services that overlaps a subnet, empty if there is none: nobody answers for
// their addresses.
func unanswered(h *hoststate.Host, subnets map[string][]netip.Prefix) string {
	for _, name := range slices.Sorted(maps.Keys(h.Pools)) {
		spec := &h.Pools[name].Spec
		pool, err := ippool.Parse(name, spec)
		if err != nil || !slices.Contains(spec.AllowedUses, v3.IPPoolAllowedUseLoadBalancer) {
			continue
		}
		for _, list := range subnets {
			for _, s := range list {
				if s.Overlaps(pool.CIDR) {
					return name
				}
			}
		}
	}
	return ""
}
