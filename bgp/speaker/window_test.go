package speaker

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/bgp"
)

// TestRouteLearnedWhileASessionComesUp: a route that arrives while another session is being established is advertised
// on that session too.
func TestRouteLearnedWhileASessionComesUp(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	const peers = 40
	d.Sessions = []bgp.Session{passive("127.0.5.250")}
	d.ExportPrefixes = []netip.Prefix{pfx("20.0.0.0/8")}
	mustSet(t, s, d)
	source := dialFake(t, "127.0.5.250", listenOf(d), fakeOptions{as: 64512, id: "10.99.6.250"})
	awaitSession(t, s, "127.0.5.250", "Established", established)
	for i := range peers { // absent at the start: their routes are not deferred
		out := passive(fmt.Sprintf("127.0.5.%d", i+1))
		out.PeerAS = 64600
		d.Sessions = append(d.Sessions, out)
	}
	mustSet(t, s, d)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events := s.WatchSessions(ctx)
	prefixes := manyPrefixes(peers)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		seen := map[netip.Addr]bool{ip("127.0.5.250"): true}
		for ev := range events {
			if a := ev.Status.Session.Address; established(ev.Status) && !seen[a] {
				source.send(update("10.0.0.2", 0, 100, prefixes[len(seen)-1]))
				if seen[a] = true; len(seen) == peers+1 {
					return
				}
			}
		}
	}()
	outs := make([]*fakePeer, peers)
	for i := range peers {
		outs[i] = dialFake(t, fmt.Sprintf("127.0.5.%d", i+1), listenOf(d),
			fakeOptions{as: 64600, id: fmt.Sprintf("10.99.6.%d", i+1)})
	}
	<-sent
	for i, p := range outs {
		p.await(fmt.Sprintf("all routes at peer %d", i+1), func() bool { return len(p.routes) == peers })
	}
}
