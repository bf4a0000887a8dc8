package bgp

import (
	"cmp"
	"net/netip"
	"slices"
)

// chooseSide selects the one of two nodes that connects. It is the one with the greater address; but if its BGPPeer
// names a port on which the peer does not listen, and the peer has the right port, it is the peer. In calico/node both
// connect, so that such a session comes up.
//
// Each end determines, from the same objects, which port the other one connects to.
func (p *planner) chooseSide(sessions []Session, peerings []*peering) {
	byRank := slices.Clone(peerings)
	slices.SortFunc(byRank, func(a, b *peering) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.object, b.object))
	})
	misses := map[netip.Addr]bool{} // addresses of nodes for which a BGPPeer names another port
	for _, b := range byRank {
		if n := p.byAddr[b.addr]; n != nil && b.portOf(n) != n.port {
			misses[b.addr] = true
		}
	}
	if len(misses) == 0 {
		return
	}
	for i := range sessions {
		s := &sessions[i]
		n, own := p.byAddr[s.Address], p.me.addrs[familyOf(s.Address)]
		if n == nil || s.Workload != "" || !misses[s.Address] && !misses[own] {
			continue
		}
		there, exists := p.portFrom(n, byRank, familyOf(s.Address))
		iReach, itReaches := s.Port == n.port, exists && there == p.me.port
		switch {
		case iReach && exists && !itReaches:
			s.Passive = false
		case itReaches && !iReach:
			s.Passive = true
		}
	}
}

// portFrom is the port of this node that the settings of node n make it connect to in one family, false if n has no
// session with this node.
func (p *planner) portFrom(n *node, byRank []*peering, family int) (port uint16, exists bool) {
	mine := p.me.addrs[family]
	for _, b := range byRank {
		switch {
		case b.workloads != nil || !b.local(n):
		case b.remote != nil && b.remote(p.me):
			return p.me.port, true
		case b.addr == mine && b.remote == nil:
			return b.portOf(p.me), true
		}
	}
	for _, b := range byRank {
		if b.reverse && b.isRemote(p.cluster, n, family) && b.local(p.me) {
			return p.me.port, true
		}
	}
	return p.me.port, p.meshed() && n.clusterID == ""
}
