package node

import (
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// TunnelType is a kind of tunnel device whose address comes from an IP pool. Handles and attributes are Calico's, so
// that a node that changes from one to the other keeps its addresses.
type TunnelType struct {
	name      string
	device    string
	family    ipam.Family
	handle    string
	attribute string
	// uses reports whether a pool's traffic goes through the tunnel.
	uses func(*ippool.Pool) bool
	// wanted reports whether the node has the tunnel.
	wanted func(node *model.Node, hostEncryption bool) bool
	// field returns the Node's field for the address; nil if it does not exist yet and create is not set.
	field func(node *model.Node, create bool) *string
}

func (k TunnelType) String() string { return k.name }

// handleOf returns the IPAM handle of the tunnel address of a node.
func (k TunnelType) handleOf(node string) string { return k.handle + node }

// The tunnels of Calico. tunnelTypes has them in the order in which Calico assigns their addresses.
var (
	tunnelWireguard = TunnelType{
		name: "WireGuard", device: model.DeviceWireguard, family: ipam.IPv4,
		handle: "wireguard-tunnel-addr-", attribute: "wireguardTunnelAddress",
		uses: func(*ippool.Pool) bool { return true },
		wanted: func(n *model.Node, hostEncryption bool) bool {
			return n.Status.WireguardPublicKey != "" && !hostEncryption
		},
		field: wireguardField(func(w *model.NodeWireguard) *string { return &w.InterfaceIPv4Address }),
	}
	tunnelWireguardV6 = TunnelType{
		name: "WireGuard IPv6", device: model.DeviceWireguardV6, family: ipam.IPv6,
		handle:    "wireguard-v6-tunnel-addr-",
		attribute: "wireguardV6TunnelAddress",
		uses:      func(*ippool.Pool) bool { return true },
		wanted: func(n *model.Node, hostEncryption bool) bool {
			return n.Status.WireguardPublicKeyV6 != "" && !hostEncryption
		},
		field: wireguardField(func(w *model.NodeWireguard) *string { return &w.InterfaceIPv6Address }),
	}
	tunnelIPIP = TunnelType{
		name: "IPIP", device: model.DeviceIPIP, family: ipam.IPv4,
		handle: "ipip-tunnel-addr-", attribute: "ipipTunnelAddress",
		uses: encapsulates(ippool.IPIP),
		field: func(n *model.Node, create bool) *string {
			if n.Spec.BGP == nil {
				if !create {
					return nil
				}
				n.Spec.BGP = &model.NodeBGPSpec{}
			}
			return &n.Spec.BGP.IPv4IPIPTunnelAddr
		},
	}
	tunnelVXLAN = TunnelType{
		name: "VXLAN", device: model.DeviceVXLAN, family: ipam.IPv4,
		handle: "vxlan-tunnel-addr-", attribute: "vxlanTunnelAddress",
		uses:  encapsulates(ippool.VXLAN),
		field: func(n *model.Node, _ bool) *string { return &n.Spec.IPv4VXLANTunnelAddr },
	}
	tunnelVXLANV6 = TunnelType{
		name: "VXLAN IPv6", device: model.DeviceVXLANV6, family: ipam.IPv6,
		handle: "vxlan-v6-tunnel-addr-", attribute: "vxlanV6TunnelAddress",
		uses:  encapsulates(ippool.VXLAN),
		field: func(n *model.Node, _ bool) *string { return &n.Spec.IPv6VXLANTunnelAddr },
	}
	tunnelTypes = []TunnelType{tunnelWireguard, tunnelWireguardV6, tunnelIPIP, tunnelVXLAN, tunnelVXLANV6}
)

// TunnelTypes returns the tunnels with these devices, in the order in which Calico assigns their addresses.
func TunnelTypes(devices ...string) (list []TunnelType) {
	for _, k := range tunnelTypes {
		if slices.Contains(devices, k.device) {
			list = append(list, k)
		}
	}
	return list
}

func encapsulates(e ippool.Encapsulation) func(*ippool.Pool) bool {
	return func(p *ippool.Pool) bool { return p.Encapsulation() == e }
}

func wireguardField(address func(*model.NodeWireguard) *string) func(*model.Node, bool) *string {
	return func(n *model.Node, create bool) *string {
		if n.Spec.Wireguard == nil {
			if !create {
				return nil
			}
			n.Spec.Wireguard = &model.NodeWireguard{}
		}
		return address(n.Spec.Wireguard)
	}
}

// get returns the address in the Node, empty if there is none.
func (k TunnelType) get(n *model.Node) string {
	if f := k.field(n, false); f != nil {
		return *f
	}
	return ""
}

// put sets the address in the Node, or removes it if it is invalid, and reports whether that changed anything.
func (k TunnelType) put(n *model.Node, addr netip.Addr) bool {
	text := ""
	if addr.IsValid() {
		text = addr.String()
	}
	if k.get(n) == text {
		return false
	}
	*k.field(n, true) = text
	// A valid Node has no empty parts.
	if n.Spec.BGP != nil && *n.Spec.BGP == (model.NodeBGPSpec{}) {
		n.Spec.BGP = nil
	}
	if n.Spec.Wireguard != nil && *n.Spec.Wireguard == (model.NodeWireguard{}) {
		n.Spec.Wireguard = nil
	}
	return true
}

// candidates lists the pools for the tunnel address of a node.
func (k TunnelType) candidates(
	n *model.Node, pools []*model.IPPool, hostEncryption bool, log *zap.Logger,
) []netip.Prefix {
	if k.wanted != nil && !k.wanted(n, hostEncryption) {
		return nil
	}
	var candidates []netip.Prefix
	for _, p := range pools {
		pool, err := ippool.Parse(p.Name, &p.Spec)
		if err != nil || ipam.FamilyOf(pool.CIDR.Addr()) != k.family || !k.uses(&pool) {
			continue
		}
		ok, err := ipam.Usable(p, v3.IPPoolAllowedUseTunnel, n.Labels)
		if err != nil {
			log.Warn("IP pool gives no tunnel addresses", zap.String("pool", p.Name), zap.Error(err))
			continue
		}
		if ok {
			candidates = append(candidates, pool.CIDR)
		}
	}
	return candidates
}

// tunnelCurrent is the address in the Node, with its assignment in IPAM.
type tunnelCurrent struct {
	address  netip.Addr // invalid if the Node has none
	assigned bool
	handle   string
	attrs    map[string]string
}

// belongsTo reports whether the address is assigned to this tunnel of this node.
func (c tunnelCurrent) belongsTo(k TunnelType, node string) bool {
	return c.assigned && c.attrs["type"] == k.attribute && c.attrs["node"] == node
}

// unregistered reports whether the address is assigned without an owner, as by very old versions.
func (c tunnelCurrent) unregistered() bool { return c.assigned && c.handle == "" && len(c.attrs) == 0 }

type tunnelAction int

const (
	tunnelNone     tunnelAction = iota // there must be no address
	tunnelKeep                         // use the address, which is ours
	tunnelRegister                     // assign the address to our handle, and use it
	tunnelAssign                       // assign a new one
)

type tunnelDecision struct {
	action  tunnelAction
	address netip.Addr
}

// decideTunnel determines the address of a tunnel. held are the addresses of its handle: more than the Node has if an
// earlier attempt was interrupted before it wrote the Node.
func decideTunnel(
	k TunnelType, node string, candidates []netip.Prefix, current tunnelCurrent, held []netip.Addr,
) tunnelDecision {
	if len(candidates) == 0 {
		return tunnelDecision{action: tunnelNone}
	}
	if has(candidates, current.address) {
		switch {
		case current.belongsTo(k, node):
			return tunnelDecision{tunnelKeep, current.address}
		case current.unregistered():
			return tunnelDecision{tunnelRegister, current.address}
		}
	}
	for _, addr := range held {
		if has(candidates, addr) {
			return tunnelDecision{tunnelKeep, addr}
		}
	}
	return tunnelDecision{action: tunnelAssign}
}
