package firewalls

import "net/netip"

const (
	// mostLookups bounds the lookups of routes in one evaluation: each takes some 20 microseconds.
	mostLookups = 64
	// mostTries bounds those in one subnet while no address there has a route by an interface.
	mostTries = 3
	// widest4 and widest6 are the lengths of the subnets of nodes whose own ones are smaller: many clouds give each
	// node one of a single address.
	widest4, widest6 = 24, 64
)

// Ways finds the interfaces of the routes to other nodes, for one evaluation. The nodes of a subnet count as reached by
// one interface, so that an evaluation costs a lookup for each subnet and not for each node. Not safe for concurrent
// use.
type Ways struct {
	lookup  func(netip.Addr) string
	left    int // lookups
	subnets map[netip.Prefix]way
}

// way is what the lookups in a subnet have found.
type way struct {
	iface string // empty: nothing yet
	tries int
}

// NewWays makes Ways without any lookup. lookup returns the interface of the route to an address, empty for none.
func NewWays(lookup func(netip.Addr) string) *Ways {
	return &Ways{lookup: lookup, left: mostLookups, subnets: map[netip.Prefix]way{}}
}

// To returns the interface to a node, given its address with the length of its subnet; empty if it is not known.
func (w *Ways) To(node netip.Prefix) string {
	widest := widest4
	if node.Addr().Is6() {
		widest = widest6
	}
	subnet := netip.PrefixFrom(node.Addr(), min(node.Bits(), widest)).Masked()
	found := w.subnets[subnet]
	if found.iface == "" && found.tries < mostTries && w.left > 0 {
		w.left--
		found = way{w.lookup(node.Addr()), found.tries + 1}
		w.subnets[subnet] = found
	}
	return found.iface
}
