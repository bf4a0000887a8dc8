package speaker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/bgp"
)

func TestEqualCostPaths(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.40"), passive("127.0.1.41"), passive("127.0.1.42")}
	mustSet(t, s, d)
	var peers []*fakePeer
	for i, sess := range d.Sessions {
		p := dialFake(t, sess.Address.String(), listenOf(d),
			fakeOptions{as: 64512, id: netip.AddrFrom4([4]byte{10, 99, 4, byte(i)}).String()})
		awaitSession(t, s, sess.Address.String(), "Established", established)
		peers = append(peers, p)
	}
	table := routeTable{}
	prefix := pfx("10.250.0.0/24")
	next := func(hops ...string) func() bool {
		return func() bool {
			var got []string
			for _, p := range table[prefix].Paths {
				got = append(got, p.NextHop.String())
			}
			return slices.Equal(got, hops)
		}
	}
	peers[0].send(update("10.0.0.40", 0, 200, prefix))
	peers[1].send(update("10.0.0.41", 0, 200, prefix))
	peers[2].send(update("10.0.0.42", 0, 100, prefix))
	awaitRoutes(t, s, table, "two equal paths", next("10.0.0.40", "10.0.0.41"))
	if m := table[prefix].Metric; m != bgp.MaxPriority-200 {
		t.Errorf("metric %d", m)
	}
	peers[0].send(withdrawal(prefix))
	awaitRoutes(t, s, table, "one path", next("10.0.0.41"))
	peers[0].send(update("10.0.0.40", 0, 200, prefix))
	awaitRoutes(t, s, table, "two paths again", next("10.0.0.40", "10.0.0.41"))
	peers[1].conn.Close() // a lost session loses its path
	awaitRoutes(t, s, table, "the path of the lost peer to go", next("10.0.0.40"))
	peers[0].send(withdrawal(prefix))
	awaitRoutes(t, s, table, "the less preferred path", next("10.0.0.42"))
	if m := table[prefix].Metric; m != bgp.MaxPriority-100 {
		t.Errorf("metric %d", m)
	}
	peers[2].send(withdrawal(prefix))
	awaitRoutes(t, s, table, "no path", func() bool { return len(table) == 0 })
}
