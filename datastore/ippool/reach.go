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

// Reach is the encapsulation of a packet to another node. It is small and needs no allocation, since there are hundreds
// of thousands of routes.
type Reach struct {
	Encapsulation Encapsulation
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
		if p.VXLAN == Always || !own.Contains(remote) {
			return Reach{VXLAN, p.CIDR.Addr().Is6()}
		}
	case IPIP: // which carries packets between IPv4 addresses only
		if !remote.Is6() && (p.IPIP == Always || !own.Contains(remote)) {
			return Reach{Encapsulation: IPIP}
		}
	}
	return Reach{}
}

// Through returns the pool with the mode by which all packets to other nodes take a device, as Reach.Device names it;
// empty: none do.
func (p Pool) Through(device string) Pool {
	p.IPIP, p.VXLAN = Never, Never
	switch device {
	case model.DeviceIPIP:
		p.IPIP = Always
	case model.DeviceVXLAN, model.DeviceVXLANV6:
		p.VXLAN = Always
	}
	return p
}
