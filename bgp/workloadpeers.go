package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// forwardWorkloads lists the sessions with those workloads of this node that a BGPPeer selects: one for the first
// address of each family. The workload connects, to whatever address of the node it can reach.
//
// calico/node ignores password, restart and keepalive time and TTL security of such a BGPPeer; we do not.
func (p *planner) forwardWorkloads(b *peering) []request {
	var ws []request
	lacks := [families]bool{}
	for k, w := range model.AllWorkloads(p.reader) {
		if w.Node != p.me.name || w.Interface == "" || !b.workloads(k, w) {
			continue
		}
		if reason := p.interfaces.Refuse(w.Interface); reason != "" {
			p.note(k.String(), reason)
			continue
		}
		for f, addr := range firstAddresses(w.Networks) {
			switch {
			case !addr.IsValid():
			case !p.me.addrs[f].IsValid():
				lacks[f] = true
			default:
				ws = append(ws, p.workload(b, addr, w.Interface))
			}
		}
	}
	for f, lack := range lacks {
		if lack {
			p.note(b.object, fmt.Sprintf("is skipped for %s: this node has no %[1]s address, so its workloads have "+
				"no %[1]s peer", familyNames[f]))
		}
	}
	p.noteUnreachable(b, ws)
	return ws
}

func (p *planner) workload(b *peering, addr netip.Addr, link string) request {
	w := p.peer(b, p.session(addr, DefaultPort, p.localAS(b), b.as))
	w.Source, w.Passive, w.Workload = netip.Addr{}, true, link
	return w
}

// firstAddresses returns the first address of each family, invalid where there is none.
func firstAddresses(networks []netip.Prefix) (first [families]netip.Addr) {
	for _, n := range networks {
		if f := familyOf(n.Addr()); !first[f].IsValid() {
			first[f] = n.Addr()
		}
	}
	return first
}

// noteUnreachable: a speaker that listens on the node's addresses only cannot be found at the address that is put on
// the workloads' interfaces for this.
func (p *planner) noteUnreachable(b *peering, ws []request) {
	bound := p.config.BindMode != nil && *p.config.BindMode == bindNodeIP
	special := p.config.LocalWorkloadPeeringIPV4 != "" || p.config.LocalWorkloadPeeringIPV6 != ""
	if bound && special && len(ws) > 0 {
		p.note(b.object, "with bindMode NodeIP of BGPConfiguration/default workloads have to peer with the address "+
			"of the node: nothing listens on localWorkloadPeeringIPV4 and localWorkloadPeeringIPV6")
	}
}

// peering lists the addresses that workloads with a session find us at, if there are special ones.
func (c *cluster) peering(sessions []Session) []Peering {
	own := [families]netip.Addr{
		c.peeringAddr(ipv4, "localWorkloadPeeringIPV4", c.config.LocalWorkloadPeeringIPV4),
		c.peeringAddr(ipv6, "localWorkloadPeeringIPV6", c.config.LocalWorkloadPeeringIPV6),
	}
	var list []Peering
	for _, s := range sessions {
		if a := own[familyOf(s.Address)]; s.Workload != "" && a.IsValid() {
			list = append(list, Peering{s.Workload, a})
		}
	}
	slices.SortFunc(list, func(a, b Peering) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), a.Address.Compare(b.Address))
	})
	return slices.Compact(list)
}

func (c *cluster) peeringAddr(family int, field, text string) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(text)
	if err != nil || familyOf(a) != family || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		c.note("BGPConfiguration/default", fmt.Sprintf("spec.%s = %q is ignored: want an %s address", field, text,
			familyNames[family]))
		return netip.Addr{}
	}
	return a
}

// statics are the kernel routes that sessions need.
func statics(sessions []Session) []Static {
	var list []Static
	for _, s := range sessions {
		if s.Via.IsValid() {
			list = append(list, Static{Prefix: netip.PrefixFrom(s.Address, s.Address.BitLen()), Via: s.Via})
		}
	}
	slices.SortFunc(list, func(a, b Static) int { return a.Prefix.Compare(b.Prefix) })
	return list
}
