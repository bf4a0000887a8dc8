package fib

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/bgp"
)

// reflectedBack reports whether a client sends back a route that this reflector has sent before.
//
// Fault: GoBGP checks the CLUSTER_LIST only before it sends a route to a client, so that a route that came back can
// become the best one here. Shown by TestReflectedRouteComesBack. Can go when GoBGP checks it on receipt of the route.
func (f *Table) reflectedBack(p fibPath) bool {
	own := f.reflect[p.peer.Unmap()]
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

// setClusterIDs sets the cluster IDs of sessions with clients. All routes are evaluated again when they change.
func (f *Table) setClusterIDs(sessions []bgp.Session) {
	reflect := map[netip.Addr]netip.Addr{}
	for _, s := range sessions {
		if s.ReflectorClient && s.ReflectorClusterID.IsValid() {
			reflect[s.Address.Unmap()] = s.ReflectorClusterID
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if maps.Equal(f.reflect, reflect) {
		return
	}
	f.reflect = reflect
	for n := range f.rows.All() {
		f.touch(n)
	}
	if len(f.dirty) > 0 {
		f.signal()
	}
}
