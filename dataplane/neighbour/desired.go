package neighbour

import (
	"fmt"
	"maps"
	"net"
	"net/netip"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
)

// key names an entry.
type key struct {
	Link    int
	Address netip.Addr
}

// String names the entry for messages.
func (k key) String() string { return fmt.Sprintf("neighbour %s of interface %d", k.Address, k.Link) }

// entry is the desired entry of an address.
type entry struct {
	// MAC is the hardware address that no packet may change; empty: the kernel resolves the address, or there is none.
	MAC string
	// NoMAC is set where neighbours have no hardware addresses.
	NoMAC bool
}

// String writes the entry for messages.
func (e entry) String() string {
	switch {
	case e.NoMAC:
		return "without a hardware address"
	case e.MAC == "":
		return "resolved by the kernel"
	}
	return e.MAC
}

// workloadsOf returns the addresses of this node's workloads, by interface.
func workloadsOf(h *hoststate.Host) map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for _, e := range h.Usable() {
		name := e.Interface
		if !h.Connects(name) {
			continue
		}
		for _, p := range e.Networks {
			if p.IsSingleIP() {
				all[name] = append(all[name], p.Addr())
			}
		}
	}
	return all
}

// ofWorkload returns the desired entries of a workload's addresses. Where the end in its namespace does not have the
// address itself, as in front of a virtual machine, the kernel resolves it.
func ofWorkload(l kernel.Link, end kernel.FarEnd, addresses []netip.Addr) map[netip.Addr]entry {
	list := map[netip.Addr]entry{}
	for _, a := range addresses {
		switch {
		case !l.Up: // the kernel has removed all entries
		case end.MAC != "" && !end.Port && end.Has(a):
			list[a] = entry{MAC: end.MAC}
		case l.Running: // without carrier it has removed these
			maps.Copy(list, resolved(a))
		}
	}
	return list
}

// ofNextHops returns the desired entries of next hops.
func ofNextHops(l kernel.Link, addresses map[netip.Addr]bool) map[netip.Addr]entry {
	list := map[netip.Addr]entry{}
	for a := range addresses {
		switch {
		case !l.Up || !l.Running:
		case overlay.NoMAC(l.Kind): // other interfaces without ARP mostly have one neighbour
			list[a] = entry{NoMAC: true}
		case !l.NoARP && !overlay.IsDevice(l.Name): // the entries of such a device follow from the nodes
			maps.Copy(list, resolved(a))
		}
	}
	return list
}

// resolved returns the entries that the kernel needs to resolve an address while the table is full: one for the address
// and, for IPv6, one for the group that it asks.
func resolved(a netip.Addr) map[netip.Addr]entry {
	list := map[netip.Addr]entry{a: {}}
	if a.Is6() {
		group, mac := kernel.SolicitedNode(a)
		list[group] = entry{MAC: mac}
	}
	return list
}

// mostLinkLocal bounds the link-local addresses of one next hop, beside the one that follows from its hardware address.
const mostLinkLocal = 2

// linkLocalOf returns the link-local addresses of IPv6 next hops, by interface: those with the hardware address of one.
// A router solicits its neighbours from there (RFC 4861, section 7.2.2), and who has no entry for it does not answer.
func linkLocalOf(hops map[int]map[netip.Addr]bool, all []kernel.Neighbour) map[int]map[netip.Addr]bool {
	type station struct {
		link int
		mac  string
	}
	routers := map[station]int{}
	found := map[int]map[netip.Addr]bool{}
	for _, n := range all {
		if n.Address.Is6() && hops[n.Link][n.Address] {
			if a, ok := linkLocal(n.MAC); ok {
				routers[station{n.Link, n.MAC}] = mostLinkLocal
				put(found, n.Link, a)
			}
		}
	}
	for _, own := range []bool{true, false} { // those that are kept already come first
		for _, n := range all {
			s := station{n.Link, n.MAC}
			if n.Own != own || !n.Address.Is6() || !n.Address.IsLinkLocalUnicast() || routers[s] == 0 ||
				found[n.Link][n.Address] {
				continue
			}
			routers[s]--
			put(found, n.Link, n.Address)
		}
	}
	return found
}

// linkLocal returns the link-local address that most hosts make of a hardware address (RFC 4291, appendix A).
func linkLocal(mac string) (netip.Addr, bool) {
	m, err := net.ParseMAC(mac)
	if err != nil || len(m) != 6 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3],
		14: m[4], 15: m[5]}), true
}

func put(all map[int]map[netip.Addr]bool, link int, a netip.Addr) {
	if all[link] == nil {
		all[link] = map[netip.Addr]bool{}
	}
	all[link][a] = true
}
