package speaker

import (
	"slices"
	"testing"

	"github.com/manxnet/manx/bgp"
)

// A router in another AS cannot direct traffic into a workload of this node: its routes through addresses of own blocks
// are not used. A reflector may pass on the next hop of a workload that speaks BGP.
func TestNextHopsInsideOwnBlocks(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	block := bgp.Origin{Prefix: pfx("10.244.1.0/26"), Blackhole: true}
	d.Originated = []bgp.Origin{block}
	d.Sessions = []bgp.Session{passive("127.0.9.1"), passive("127.0.9.2")}
	d.Sessions[1].PeerAS = 65001
	mustSet(t, s, d)
	reflector := dialFake(t, "127.0.9.1", listenOf(d), fakeOptions{as: 64512, id: "10.99.9.1"})
	router := dialFake(t, "127.0.9.2", listenOf(d), fakeOptions{as: 65001, id: "10.99.9.2"})
	reflector.send(update("10.244.1.5", 65009, 100, pfx("192.0.2.0/25")))
	router.send(update("10.244.1.5", 65001, 0, pfx("192.0.2.128/25"), pfx("0.0.0.0/0")))
	router.send(update("10.244.2.5", 65001, 0, pfx("198.51.100.0/25")))
	table := routeTable{}
	awaitRoutes(t, s, table, "the other routes", func() bool { return len(table) == 2 })
	for _, p := range []string{"192.0.2.0/25", "198.51.100.0/25"} {
		if _, used := table[pfx(p)]; !used {
			t.Errorf("%s is not used: %v", p, table)
		}
	}
	awaitRejected(t, s, "next_hop 192.0.2.128/25", "next_hop 0.0.0.0/0")

	d.Originated = nil // the block goes to another node
	mustSet(t, s, d)
	awaitRoutes(t, s, table, "all routes", func() bool { return len(table) == 4 })
	d.Originated = []bgp.Origin{block}
	mustSet(t, s, d)
	awaitRoutes(t, s, table, "the routes of before", func() bool { return len(table) == 2 })
	d.Sessions = slices.Clone(d.Sessions)
	d.Sessions[0].PeerAS = 65003 // whoever was a reflector is not one any more
	mustSet(t, s, d)
	awaitRoutes(t, s, table, "the route of the router alone", func() bool { return len(table) == 1 })
}
