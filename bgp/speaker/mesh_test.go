package speaker

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// meshNode is a peer that announces one block.
type meshNode struct {
	*rawPeer
	block netip.Prefix
}

func (n *meshNode) String() string { return fmt.Sprintf("node %s", n.session.Address) }

// up brings the session up and announces the block.
func (n *meshNode) up() error {
	if err := n.connect(); err != nil {
		return err
	}
	d := dialect{as: n.session.PeerAS}
	n.write(d.shortUpdate(d.routes(n.block)))
	return nil
}

// TestFiveHundredSessions: a node has sessions with 500 others, some of which dial it, and all are lost and come back
// at once.
func TestFiveHundredSessions(t *testing.T) { // not parallel: it takes both processors
	const dialling, dialled = 300, 200
	s, d := testSpeaker(t, Config{Logger: zap.NewNop(), RestartDeferral: time.Second, ConnectRetry: time.Second})
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1}}
	var nodes []*meshNode
	for i := range dialling + dialled {
		host := [2]byte{byte(i / 250), byte(1 + i%250)}
		addr := netip.AddrFrom4([4]byte{127, 9, host[0], host[1]})
		n := &meshNode{block: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 70 + host[0], host[1], 0}), 26),
			rawPeer: &rawPeer{session: passive(addr.String()), speaker: listenOf(d),
				options: fakeOptions{as: 64512, id: netip.AddrFrom4([4]byte{10, 98, host[0], host[1]}).String()}}}
		if i >= dialling {
			n.listen(t, d.Global.ListenPort)
		}
		d.Sessions = append(d.Sessions, n.session)
		nodes = append(nodes, n)
	}
	mustSet(t, s, d)
	table := routeTable{}
	for round := range 2 {
		start := time.Now()
		forEach(t, nodes, (*meshNode).up) // each has got the speaker's route
		awaitRoutes(t, s, table, "the routes of all", func() bool { return len(table) == len(nodes) })
		t.Logf("round %d: all sessions and routes after %.1f s", round+1, time.Since(start).Seconds())
		for _, n := range nodes {
			if paths := table[n.block].Paths; len(paths) != 1 || paths[0].Peer != n.session.Address {
				t.Fatalf("%s: paths of its block: %+v", n, paths)
			}
		}
		for _, st := range s.Sessions() {
			if !established(st) || st.Flaps != uint64(round) {
				t.Errorf("%s: %s, %d flaps, %q", st.Session.Address, st.State, st.Flaps, st.LastError)
			}
		}
		forEach(t, nodes, func(n *meshNode) error { n.disconnect(); return nil })
		awaitRoutes(t, s, table, "the loss of all routes", func() bool { return len(table) == 0 })
	}
}
