package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// noteForeignSources adds a notice for each session with a router on one subnet of this host whose source address is on
// another one. The router may expect the host's address on the subnet that it shares: it then refuses the session, or
// has to find the next hop of its routes on another subnet. A source that is on no subnet is one of the host alone, on
// its loopback interface, and meant so.
func (c *cluster) noteForeignSources(sessions []Session) {
	for i := range sessions {
		s := &sessions[i]
		peer, source := s.Address.Unmap(), s.Source.Unmap()
		if !source.IsValid() || c.byAddr[peer] != nil || len(s.From) == 0 || !strings.HasPrefix(s.From[0], "BGPPeer/") {
			continue
		}
		shared, own := c.subnetWith(peer), c.subnetWith(source)
		if shared.IsValid() && own.IsValid() && !shared.Contains(source) && !own.Contains(peer) {
			c.note(s.From[0], fmt.Sprintf("%s is on %s, to which this host is connected, but the session uses the "+
				"address of the Node, %s, which is on %s: if the router expects another address, set "+
				"sourceAddress: None", peer, shared, source, own))
		}
	}
}

// subnetWith returns the subnet of this host with an address; invalid if there is none of more than one address.
func (c *cluster) subnetWith(a netip.Addr) netip.Prefix {
	i := slices.IndexFunc(c.connected, func(p netip.Prefix) bool { return !p.IsSingleIP() && p.Contains(a) })
	if i < 0 {
		return netip.Prefix{}
	}
	return c.connected[i]
}
