package ownership

import (
	"fmt"
	"net/netip"
)

// Addresses are the addresses of a node, with the number of interfaces that have each. Keys have no zone, and IPv4
// addresses are not in IPv6 form.
type Addresses map[netip.Addr]int

// Has reports whether an address is the node's own. A route through it would loop.
func (a Addresses) Has(addr netip.Addr) bool { return a[addr.Unmap().WithZone("")] > 0 }

// Set has the addresses, blocks and prefixes of a node. The zero value is empty.
type Set struct {
	Addresses  Addresses
	Blocks     Blocks
	Originated map[netip.Prefix]bool // that no other node may advertise; without host bits
}

// Refuse returns the reason why a route for p, which has no host bits, must not be learned from another speaker; empty
// if it may be.
//
// Prefixes that contain own blocks, such as a default route, may be learned. So may a single address inside an own
// block: another node has borrowed it. An address in use here is among Addresses or Originated.
func (s *Set) Refuse(p netip.Prefix) string {
	if s.Originated[p] {
		return "this node originates the prefix itself; no other speaker may announce it"
	}
	if p.IsSingleIP() {
		if s.Addresses.Has(p.Addr()) {
			return fmt.Sprintf("%s is an address of this node", p.Addr())
		}
		return ""
	}
	if block, ok := s.Blocks.Around(p); ok {
		return fmt.Sprintf("%s is in block %s, which belongs to this node", p, block)
	}
	return ""
}
