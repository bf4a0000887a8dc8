package connected

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/kernel"
)

// alien reports whether a route is one that another program or a person made for traffic of this host. Routes that a
// neighbour has caused, by redirects and router advertisements, are none: whoever is on the link could otherwise
// announce routes to the whole network.
func alien(r kernel.Route) bool {
	switch r.Protocol {
	case kernel.ProtocolRedirect, kernel.ProtocolKernel, kernel.ProtocolRA, kernel.ProtocolBIRD, kernel.ProtocolCalico:
		return false
	}
	return r.Table == kernel.MainTable && r.Type != kernel.Throw && global(r.Dst.Addr())
}

// networksOf returns the networks of addresses by prefix, each with an interface that has it.
func networksOf(addresses []kernel.Address, links []kernel.Link) map[netip.Prefix]bgp.KernelRoute {
	names := namesOf(links)
	list := map[netip.Prefix]bgp.KernelRoute{}
	for _, a := range addresses {
		p, name := a.Prefix.Masked(), names[a.Link]
		if have, ok := list[p]; !global(p.Addr()) || name == "" || ok && have.Interface <= name {
			continue
		}
		list[p] = bgp.KernelRoute{Prefix: p, Interface: name, Connected: true}
	}
	return list
}

// namesOf returns the names of the interfaces that are up, by index.
func namesOf(links []kernel.Link) map[int]string {
	names := make(map[int]string, len(links))
	for _, l := range links {
		if l.Up {
			names[l.Index] = l.Name
		}
	}
	return names
}

// merge returns networks and routes, sorted: of each prefix the network, else the route with the lowest metric.
func merge(networks map[netip.Prefix]bgp.KernelRoute, routes []kernel.Route, links []kernel.Link) []bgp.KernelRoute {
	names := namesOf(links)
	for _, r := range routes {
		k := bgp.KernelRoute{Prefix: r.Dst, Metric: r.Metric, Protocol: uint8(r.Protocol)}
		for _, h := range r.NextHops {
			if k.Interface = names[h.Link]; k.Interface != "" {
				break
			}
		}
		have, ok := networks[r.Dst]
		if r.Type == kernel.Unicast && k.Interface == "" || ok && (have.Connected || have.Metric <= k.Metric) {
			continue
		}
		networks[r.Dst] = k
	}
	return slices.SortedFunc(maps.Values(networks), func(a, b bgp.KernelRoute) int {
		return a.Prefix.Compare(b.Prefix)
	})
}
