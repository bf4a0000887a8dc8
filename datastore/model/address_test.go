package model

import (
	"net/netip"
	"testing"
)

func TestNodeAddress(t *testing.T) {
	for _, c := range []struct {
		rule, text string
		family     Family
		want       string // empty: invalid
	}{
		{"with the length of its subnet", "10.0.0.5/24", IPv4, "10.0.0.5/24"},
		{"bare", "10.0.0.5", IPv4, "10.0.0.5/32"},
		{"IPv6", "fd00::5/64", IPv6, "fd00::5/64"},
		{"IPv6, bare", "fd00::5", IPv6, "fd00::5/128"},
		{"IPv4 in IPv6 form, bare", "::ffff:10.0.0.5", IPv4, "10.0.0.5/32"},
		{"IPv4 in IPv6 form with a length", "::ffff:10.0.0.5/120", IPv4, "10.0.0.5/24"},
		{"IPv4 in IPv6 form with a length of IPv4", "::ffff:10.0.0.5/24", IPv4, ""},
		{"IPv4 in IPv6 form is no IPv6 address", "::ffff:10.0.0.5", IPv6, ""},
		{"nor is it with a length", "::ffff:10.0.0.5/120", IPv6, ""},
		{"IPv6 as IPv4", "fd00::5/64", IPv4, ""},
		{"IPv4 as IPv6", "10.0.0.5/24", IPv6, ""},
		{"none", "", IPv4, ""},
		{"none", "", IPv6, ""},
		{"a length that is too long", "10.0.0.5/33", IPv4, ""},
		{"no length", "10.0.0.5/", IPv4, ""},
		{"a zone", "fe80::5%eth0", IPv6, ""},
		{"a zone and a length", "fe80::5%eth0/64", IPv6, ""},
		{"white space", " 10.0.0.5/24", IPv4, ""},
		{"a name", "node-1", IPv4, ""},
	} {
		b := &NodeBGPSpec{IPv4Address: c.text}
		if c.family == IPv6 {
			b = &NodeBGPSpec{IPv6Address: c.text}
		}
		var want netip.Prefix
		if c.want != "" {
			want = netip.MustParsePrefix(c.want)
		}
		if got := b.Address(c.family); got != want {
			t.Errorf("%s: %q as IPv%d is %s, want %s", c.rule, c.text, c.family, got, want)
		}
	}
	if p := (*NodeBGPSpec)(nil).Address(IPv4); p.IsValid() {
		t.Errorf("a node without BGP has the address %s", p)
	}
}

func TestTunnelAddresses(t *testing.T) {
	n := &Node{Spec: NodeSpec{
		BGP:                 &NodeBGPSpec{IPv4IPIPTunnelAddr: "10.244.0.1"},
		IPv4VXLANTunnelAddr: "10.244.0.2/32", IPv6VXLANTunnelAddr: "fd10::2",
		Wireguard: &NodeWireguard{InterfaceIPv4Address: "::ffff:10.244.0.3", InterfaceIPv6Address: "10.244.0.4"},
	}}
	want := map[string]string{DeviceIPIP: "10.244.0.1", DeviceVXLAN: "10.244.0.2", DeviceVXLANV6: "fd10::2",
		DeviceWireguard: "10.244.0.3"} // the last one is of the other family
	list := n.TunnelAddresses()
	for _, a := range list {
		if a.Address != netip.MustParseAddr(want[a.Device]) || n.TunnelAddress(a.Device) != a.Address {
			t.Errorf("%s has %s, want %s", a.Device, a.Address, want[a.Device])
		}
	}
	if len(list) != len(want) || n.TunnelAddress(DeviceWireguardV6).IsValid() {
		t.Errorf("have %v", list)
	}
	for _, n := range []*Node{nil, {}, {Spec: NodeSpec{IPv4VXLANTunnelAddr: "0.0.0.0", IPv6VXLANTunnelAddr: "x"}}} {
		if list := n.TunnelAddresses(); len(list) > 0 {
			t.Errorf("of nothing: %v", list)
		}
	}
}
