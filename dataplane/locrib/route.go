// Package locrib has the routes that BGP has selected from those of its peers (Loc-RIB, RFC 4271), as values that go to
// the kernel's routing tables.
package locrib

import "net/netip"

// Route is the outcome of best path selection for one prefix that other speakers announced.
type Route struct {
	Prefix netip.Prefix
	// Paths are the equal-cost best paths, sorted by next hop and peer; none: the prefix is withdrawn.
	Paths []Path
	// Metric is the metric of the kernel's route: MaxPriority of package bgp - LOCAL_PREF. The lowest wins.
	Metric uint32
}

// Path is one way to a prefix.
type Path struct {
	NextHop netip.Addr
	Peer    netip.Addr
}

// AppendNextHops appends the next hops of the paths to list, each once.
func (r *Route) AppendNextHops(list []netip.Addr) []netip.Addr {
	for i, p := range r.Paths {
		if i == 0 || p.NextHop != r.Paths[i-1].NextHop {
			list = append(list, p.NextHop)
		}
	}
	return list
}
