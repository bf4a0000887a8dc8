package fib

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
)

// peerFacts has the facts about a peer that decide whether its routes are used. Most peers have none.
type peerFacts struct {
	cluster  netip.Addr // our cluster ID, if the peer is our client (RFC 4456)
	external bool       // the peer is in another AS
}

// reflectedBack reports whether a client sends back a route that this reflector has sent before.
//
// Fault: GoBGP checks the CLUSTER_LIST only before it sends a route to a client, so that a route that came back can
// become the best one here. Shown by TestReflectedRouteComesBack. Can go when GoBGP checks it on receipt of the route.
func (f *Table) reflectedBack(p fibPath) bool {
	own := f.peers[p.peer.Unmap()].cluster
	if !own.Is4() || p.clusters == "" {
		return false
	}
	for id := range slices.Chunk([]byte(p.clusters), 4) {
		if netip.AddrFrom4([4]byte(id)) == own {
			return true
		}
	}
	return false
}

// throughOurs reports whether a peer in another AS names a workload of this node as the next hop. Only a workload that
// speaks BGP itself may name its own address. Internal peers may pass on the next hop of such a workload (RFC 4271
// section 5.1.3).
func (f *Table) throughOurs(p fibPath) bool {
	if !f.peers[p.peer.Unmap()].external || p.nextHop == p.peer {
		return false
	}
	_, ours := f.mine.Blocks.Around(hostPrefix(p.nextHop))
	return ours
}

// hostPrefix is the prefix of an address alone.
func hostPrefix(a netip.Addr) netip.Prefix {
	return netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen())
}

// setPeers sets the facts about peers. The routes of peers whose facts change are evaluated again.
func (f *Table) setPeers(sessions []bgp.Session) {
	peers := map[netip.Addr]peerFacts{}
	for _, s := range sessions {
		facts := peerFacts{external: s.PeerAS != s.LocalAS}
		if s.ReflectorClient && s.ReflectorClusterID.IsValid() {
			facts.cluster = s.ReflectorClusterID
		}
		if facts != (peerFacts{}) {
			peers[s.Address.Unmap()] = facts
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if maps.Equal(f.peers, peers) {
		return
	}
	changed := map[netip.Addr]bool{}
	differ(f.peers, peers, func(a netip.Addr) { changed[a] = true })
	for a, facts := range peers {
		changed[a] = changed[a] || f.peers[a] != facts
	}
	f.peers = peers
	ofChanged := func(p storedPath) bool { return changed[f.path(p).peer.Unmap()] }
	for n := range f.rows.All() {
		if slices.ContainsFunc(f.paths(n), ofChanged) {
			f.touch(n)
		}
	}
	if len(f.dirty) > 0 {
		f.signal()
	}
}
