package ippool

import (
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// Encapsulation is how a packet to a workload travels between two nodes.
type Encapsulation uint8

// The ways to travel that pools decide about. (WireGuard is decided by the keys of the two nodes.)
const (
	Direct Encapsulation = iota // as it is
	IPIP
	VXLAN
)

func (e Encapsulation) String() string { return [...]string{"Direct", "IPIP", "VXLAN"}[e] }

// Reach is the way of a packet to another node.
type Reach struct {
	Encapsulation Encapsulation
	Device        string // of the tunnel; empty for none
	Reason        string
}

// Encapsulation is that of the pool's packets where they are encapsulated at all. With both modes set, which no pool
// may have, VXLAN counts, as in Calico. p may be nil: outside of all pools nothing is encapsulated.
func (p *Pool) Encapsulation() Encapsulation {
	switch {
	case p == nil:
		return Direct
	case p.VXLAN != Never:
		return VXLAN
	case p.IPIP != Never:
		return IPIP
	}
	return Direct
}

// Reach decides how a packet to an address of the pool reaches another node. own is the sending node's address with
// the length of its subnet (see model.NodeBGPSpec.Address), remote that of the other node, or the next hop that
// stands for it; both are of the family of the outer packet. What is not known is invalid, and then in no common
// subnet. Only the own node's subnet counts, as in Calico: with different lengths two nodes may decide differently. p
// may be nil.
func (p *Pool) Reach(own netip.Prefix, remote netip.Addr) Reach {
	switch p.Encapsulation() {
	case VXLAN:
		device := model.DeviceVXLAN
		if p.CIDR.Addr().Is6() {
			device = model.DeviceVXLANV6
		}
		return tunnel(p.VXLAN, own, remote, Reach{VXLAN, device, ""}, &vxlanReasons)
	case IPIP:
		if remote.IsValid() && !remote.Is4() {
			return Reach{Reason: "IPIP carries packets between IPv4 addresses only"}
		}
		return tunnel(p.IPIP, own, remote, Reach{IPIP, model.DeviceIPIP, ""}, &ipipReasons)
	}
	if p == nil {
		return Reach{Reason: "outside of all IP pools"}
	}
	return Reach{Reason: "the pool has no encapsulation"}
}

// reasons are those for one encapsulation: texts that are ready, since routes are decided by the hundred thousand.
type reasons struct{ always, across, within string }

var (
	ipipReasons = reasons{
		always: "ipipMode is Always",
		across: "ipipMode is CrossSubnet, and the node is not known to be in the same subnet",
		within: "ipipMode is CrossSubnet, and the node is in the same subnet",
	}
	vxlanReasons = reasons{
		always: "vxlanMode is Always",
		across: "vxlanMode is CrossSubnet, and the node is not known to be in the same subnet",
		within: "vxlanMode is CrossSubnet, and the node is in the same subnet",
	}
)

func tunnel(m Mode, own netip.Prefix, remote netip.Addr, r Reach, why *reasons) Reach {
	switch {
	case m == Always:
		r.Reason = why.always
	case own.Contains(remote):
		return Reach{Reason: why.within}
	default:
		r.Reason = why.across
	}
	return r
}
