package model

import "net/netip"

// Family is an address family, by its number.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Address is the node's address of a family with the length of its subnet, as Calico reads it: without a length it is
// a subnet of its own, so that no other node is in the same one. IPv4 addresses in IPv6 form are IPv4 addresses. It
// is invalid if the node has none, if it cannot be parsed, or if it is of the other family. b may be nil.
func (b *NodeBGPSpec) Address(f Family) netip.Prefix {
	switch {
	case b == nil:
		return netip.Prefix{}
	case f == IPv6:
		return ParseAddress(b.IPv6Address, f)
	}
	return ParseAddress(b.IPv4Address, f)
}

// ParseAddress reads ADDRESS or ADDRESS/LENGTH of a host, as NodeBGPSpec.Address has it. It returns an invalid prefix
// for anything else, also for an address with a zone.
func ParseAddress(text string, f Family) netip.Prefix {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if a := p.Addr(); a.Is4In6() {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96) // invalid if the length ends before the IPv4 address begins
	}
	if !p.IsValid() || p.Addr().Is4() != (f == IPv4) {
		return netip.Prefix{}
	}
	return p
}
