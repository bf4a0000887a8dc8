package ippool

import (
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// Encapsulation is the encapsulation of a packet to a workload between two nodes.
type Encapsulation uint8

// The encapsulations that pools decide. (WireGuard depends on the keys of the two nodes.)
const (
	Direct Encapsulation = iota // none
	IPIP
	VXLAN
)

func (e Encapsulation) String() string { return [...]string{"Direct", "IPIP", "VXLAN"}[e] }

// Reach is the encapsulation of a packet to another node, and its reason. It is small and needs no allocation, since
// there are hundreds of thousands of routes.
type Reach struct {
	Encapsulation Encapsulation
	because       reason
	v6            bool
}

// Device returns the tunnel's device; empty for none.
func (r Reach) Device() string {
	switch {
	case r.Encapsulation == IPIP:
		return model.DeviceIPIP
	case r.Encapsulation == VXLAN && r.v6:
		return model.DeviceVXLANV6
	case r.Encapsulation == VXLAN:
		return model.DeviceVXLAN
	}
	return ""
}

// Reason explains the encapsulation.
func (r Reach) Reason() string { return reasons[r.because] }

type reason uint8

const (
	outside reason = iota
	plain
	otherFamily
	ipipAlways
	ipipAcross
	ipipWithin
	vxlanAlways
	vxlanAcross
	vxlanWithin
)

var reasons = [...]string{
	outside:     "outside of all IP pools",
	plain:       "the pool has no encapsulation",
	otherFamily: "IPIP carries packets between IPv4 addresses only",
	ipipAlways:  "ipipMode is Always",
	ipipAcross:  "ipipMode is CrossSubnet, and the node is not known to be in the same subnet",
	ipipWithin:  "ipipMode is CrossSubnet, and the node is in the same subnet",
	vxlanAlways: "vxlanMode is Always",
	vxlanAcross: "vxlanMode is CrossSubnet, and the node is not known to be in the same subnet",
	vxlanWithin: "vxlanMode is CrossSubnet, and the node is in the same subnet",
}

// Encapsulation returns the encapsulation of the pool's packets, if they are encapsulated at all. With both modes set,
// which no pool may have, VXLAN applies, as in Calico. p may be nil: outside of all pools there is no encapsulation.
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

// Reach returns the encapsulation of a packet for an address of the pool to another node. own is the sending node's
// address with the length of its subnet (see model.NodeBGPSpec.Address), remote that of the other node, or its next
// hop; both are of the family of the outer packet. An unknown address is invalid, and in no common subnet. Only the own
// node's subnet applies, as in Calico: with different lengths two nodes may decide differently. p may be nil.
func (p *Pool) Reach(own netip.Prefix, remote netip.Addr) Reach {
	switch p.Encapsulation() {
	case VXLAN:
		switch {
		case p.VXLAN == Always:
			return Reach{VXLAN, vxlanAlways, p.CIDR.Addr().Is6()}
		case own.Contains(remote):
			return Reach{because: vxlanWithin}
		}
		return Reach{VXLAN, vxlanAcross, p.CIDR.Addr().Is6()}
	case IPIP:
		switch {
		case remote.Is6():
			return Reach{because: otherFamily}
		case p.IPIP == Always:
			return Reach{Encapsulation: IPIP, because: ipipAlways}
		case own.Contains(remote):
			return Reach{because: ipipWithin}
		}
		return Reach{Encapsulation: IPIP, because: ipipAcross}
	}
	if p == nil {
		return Reach{because: outside}
	}
	return Reach{because: plain}
}
