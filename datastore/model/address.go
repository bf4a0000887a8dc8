package model

import "net/netip"

// Family is an address family, by its number.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Address returns the node's address of a family with the length of its subnet, as Calico does: an address without a
// length is a subnet of its own, which contains no other node. IPv4 addresses in IPv6 form are IPv4 addresses. It is
// invalid if the node has none, if it cannot be parsed, or if it is of the other family. b may be nil.
func (b *NodeBGPSpec) Address(f Family) netip.Prefix {
	switch {
	case b == nil:
		return netip.Prefix{}
	case f == IPv6:
		return ParseAddress(b.IPv6Address, f)
	}
	return ParseAddress(b.IPv4Address, f)
}

// Addresses lists the addresses of a node itself, of BGP and of its spec, without malformed ones.
func (n *Node) Addresses() []netip.Addr {
	var list []netip.Addr
	for _, f := range []Family{IPv4, IPv6} {
		if p := n.Spec.BGP.Address(f); p.IsValid() {
			list = append(list, p.Addr())
		}
	}
	for _, a := range n.Spec.Addresses {
		if p := parseNetwork(a.Address); p.IsValid() {
			list = append(list, p.Addr())
		}
	}
	return list
}

// HostAddress returns the node's own address of a family. As in Calico, it is the address for BGP, else the first
// InternalIP, else the first ExternalIP. The result is invalid if the node has none, or n is nil.
func (n *Node) HostAddress(f Family) netip.Addr {
	if n == nil {
		return netip.Addr{}
	}
	if a := n.Spec.BGP.Address(f).Addr(); a.IsValid() {
		return a
	}
	for _, kind := range []string{"InternalIP", "ExternalIP"} {
		for _, a := range n.Spec.Addresses {
			if p := ParseAddress(a.Address, f); a.Type == kind && p.IsValid() {
				return p.Addr()
			}
		}
	}
	return netip.Addr{}
}

// PublicKey returns the key of WireGuard that a node publishes for a family, as text; empty: none. n may be nil.
func (n *Node) PublicKey(f Family) string {
	switch {
	case n == nil:
		return ""
	case f == IPv6:
		return n.Status.WireguardPublicKeyV6
	}
	return n.Status.WireguardPublicKey
}

// TunnelAddress is the address that a node has on one of its tunnel devices.
type TunnelAddress struct {
	Device  string
	Address netip.Addr
}

// TunnelAddresses lists a node's tunnel addresses, except malformed ones. n may be nil.
func (n *Node) TunnelAddresses() []TunnelAddress {
	if n == nil {
		return nil
	}
	var list []TunnelAddress
	add := func(device, text string, f Family) {
		if a := ParseAddress(text, f).Addr(); a.IsValid() && !a.IsUnspecified() {
			list = append(list, TunnelAddress{device, a})
		}
	}
	if b := n.Spec.BGP; b != nil {
		add(DeviceIPIP, b.IPv4IPIPTunnelAddr, IPv4)
	}
	add(DeviceVXLAN, n.Spec.IPv4VXLANTunnelAddr, IPv4)
	add(DeviceVXLANV6, n.Spec.IPv6VXLANTunnelAddr, IPv6)
	if w := n.Spec.Wireguard; w != nil {
		add(DeviceWireguard, w.InterfaceIPv4Address, IPv4)
		add(DeviceWireguardV6, w.InterfaceIPv6Address, IPv6)
	}
	return list
}

// TunnelAddress returns the address that a node has on a tunnel device, invalid if it has none. n may be nil.
func (n *Node) TunnelAddress(device string) netip.Addr {
	for _, t := range n.TunnelAddresses() {
		if t.Device == device {
			return t.Address
		}
	}
	return netip.Addr{}
}

// ParseAddress parses a host's ADDRESS or ADDRESS/LENGTH, the form of NodeBGPSpec.Address. It returns an invalid prefix
// for anything else, also for an address with a zone.
func ParseAddress(text string, f Family) netip.Prefix {
	if p := parseNetwork(text); p.Addr().Is4() == (f == IPv4) {
		return p
	}
	return netip.Prefix{}
}

// parseNetwork parses ADDRESS or ADDRESS/LENGTH of either family. It returns an invalid prefix for anything else.
func parseNetwork(text string) netip.Prefix {
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
	if !p.IsValid() {
		return netip.Prefix{}
	}
	return p
}

// Networks parses the addresses of an endpoint, as ParseAddress does. It leaves out malformed ones.
func Networks(texts []string) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		if p := parseNetwork(text); p.IsValid() {
			list = append(list, p)
		}
	}
	return list
}
