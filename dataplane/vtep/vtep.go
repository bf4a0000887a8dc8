package vtep

import (
	"crypto/sha1"
	"fmt"
	"net"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// VTEP is the VXLAN tunnel endpoint (RFC 7348) of a node for one family.
type VTEP struct {
	Node string
	// Address is the node's own, to which outer packets are sent.
	Address netip.Addr
	// Tunnel is the address of the node's VXLAN device, the gateway of routes to its workloads.
	Tunnel netip.Addr
	// MAC is the hardware address of that device, as Link.MAC of package kernel has it.
	MAC string
}

// Of returns the VTEP of a node. It has an error if the node publishes no tunnel address, no address of the family, or
// a hardware address that is none of an interface.
func Of(node string, n *model.Node, f model.Family) (VTEP, error) {
	device, field, setting := model.DeviceVXLAN, n.Spec.VXLANTunnelMACAddr, "vxlanTunnelMACAddr"
	if f == model.IPv6 {
		device, field, setting = model.DeviceVXLANV6, n.Spec.VXLANTunnelMACAddrV6, "vxlanTunnelMACAddrV6"
	}
	const another = "Its manxd or calico-node publishes another one while it runs"
	v := VTEP{Node: node, Address: n.Spec.BGP.Address(f).Addr(), Tunnel: n.TunnelAddress(device), MAC: MAC(node, f)}
	switch {
	case !v.Address.IsValid():
		return VTEP{}, fmt.Errorf("node %s has no IPv%d address in its Node (spec.bgp)", node, f)
	case !v.Tunnel.IsValid():
		return VTEP{}, fmt.Errorf("node %s has published no address of %s", node, device)
	case !v.Address.IsGlobalUnicast() && !v.Address.IsLinkLocalUnicast():
		return VTEP{}, fmt.Errorf("node %s has the address %s in its Node (spec.bgp), which is no host's", node,
			v.Address)
	case !v.Tunnel.IsGlobalUnicast():
		return VTEP{}, fmt.Errorf("node %s has published %s as that of %s, which is no host's. %s", node, v.Tunnel,
			device, another)
	case v.Tunnel == v.Address:
		return VTEP{}, fmt.Errorf("node %s has published its own address %s as that of %s. %s", node, v.Address,
			device, another)
	case field != "":
		mac, err := net.ParseMAC(field)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
			return VTEP{}, fmt.Errorf("node %s has published %q as the hardware address of %s, which is none of an "+
				"interface. Remove it from the Node (%s): the address then follows from the node's name", node, field,
				device, setting)
		}
		v.MAC = mac.String()
	}
	return v, nil
}

// MAC returns the hardware address that Calico gives the VXLAN device of a node that publishes none: locally
// administered, from a hash of the node's name.
func MAC(node string, f model.Family) string {
	if f == model.IPv6 {
		node += "-v6"
	}
	sum := sha1.Sum([]byte(node))
	return net.HardwareAddr(append([]byte{0x66}, sum[:5]...)).String()
}
