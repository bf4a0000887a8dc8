package validation

import (
	"encoding/base64"
	"net/netip"
	"reflect"

	"github.com/manxnet/manx/datastore/model"
)

func checkNode(c *check, n *model.Node) {
	s := n.Spec
	if s.BGP != nil {
		checkNodeBGP(c, *s.BGP)
	}
	c.ip("spec.ipv4VXLANTunnelAddr", s.IPv4VXLANTunnelAddr, 4)
	c.ip("spec.ipv6VXLANTunnelAddr", s.IPv6VXLANTunnelAddr, 6)
	c.mac("spec.vxlanTunnelMACAddr", s.VXLANTunnelMACAddr)
	c.mac("spec.vxlanTunnelMACAddrV6", s.VXLANTunnelMACAddrV6)
	if w := s.Wireguard; w != nil {
		c.ip("spec.wireguard.interfaceIPv4Address", w.InterfaceIPv4Address, 4)
		c.ip("spec.wireguard.interfaceIPv6Address", w.InterfaceIPv6Address, 6)
	}
	for i, a := range s.Addresses {
		if _, rule := parseNet(a.Address, 0); rule != "" {
			c.fail(at("spec.addresses", i)+".address", a.Address, "%s", rule)
		}
		enum(c, at("spec.addresses", i)+".type", a.Type, "CalicoNodeIP", "InternalIP", "ExternalIP")
	}
	for i, itf := range s.Interfaces {
		for j, a := range itf.Addresses {
			if _, rule := parseNet(a, 0); rule != "" {
				c.fail(at(at("spec.interfaces", i)+".addresses", j), a, "%s", rule)
			}
		}
	}
	checkWireguardKey(c, "status.wireguardPublicKey", n.Status.WireguardPublicKey)
	checkWireguardKey(c, "status.wireguardPublicKeyV6", n.Status.WireguardPublicKeyV6)
	for i, p := range n.Status.PodCIDRs {
		if _, err := netip.ParsePrefix(p); err != nil {
			c.fail(at("status.podCIDRs", i), p, "must be a CIDR: ADDRESS/LENGTH")
		}
	}
}

// checkNodeBGP is strict on reading too: sessions with a wrong address, or a reflector configured as an ordinary node,
// are worse than a node without BGP.
func checkNodeBGP(c *check, b model.NodeBGPSpec) {
	if reflect.DeepEqual(b, model.NodeBGPSpec{}) {
		c.fail("spec.bgp", "{}", "must be left out when nothing is set in it")
	}
	for _, a := range []struct {
		field, text string
		family      model.Family
	}{{"spec.bgp.ipv4Address", b.IPv4Address, model.IPv4}, {"spec.bgp.ipv6Address", b.IPv6Address, model.IPv6}} {
		if a.text != "" && !b.Address(a.family).IsValid() {
			c.broken(a.field, a.text, "must be %s address or CIDR", familyName(int(a.family)))
		}
	}
	if b.RouteReflectorClusterID != "" {
		if _, rule := parseIP(b.RouteReflectorClusterID, 4); rule != "" {
			c.broken("spec.bgp.routeReflectorClusterID", b.RouteReflectorClusterID, "%s", rule)
		}
	}
	c.ip("spec.bgp.ipv4IPIPTunnelAddr", b.IPv4IPIPTunnelAddr, 4)
}

func checkWireguardKey(c *check, field, key string) {
	if key == "" {
		return
	}
	if b, err := base64.StdEncoding.DecodeString(key); err != nil || len(b) != 32 {
		c.fail(field, key, "must be a WireGuard key: 32 bytes in base64")
	}
}
