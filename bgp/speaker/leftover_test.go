package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// TestRouteOfAClientGoes: a reflector passes a client's route on to an internal peer. When another internal peer has a
// better one, or all are gone, the first peer must not have it any more (RFC 4456 section 6).
func TestRouteOfAClientGoes(t *testing.T) {
	t.Parallel()
	soon := func() { time.Sleep(leftoverDelay / 6) } // the speaker handles one event before the next
	for _, c := range []struct {
		name   string
		events func(client, other *fakePeer)
		has    bool
	}{
		{"a better one of an internal peer", func(_, other *fakePeer) { other.send(better()) }, false},
		{"better, then both withdrawn", func(client, other *fakePeer) {
			other.send(better())
			soon()
			client.send(withdrawal(shared))
			soon()
			other.send(withdrawal(shared))
		}, false},
		{"better, then lost", func(client, other *fakePeer) {
			other.send(better())
			soon()
			client.send(gobgp.NewBGPNotificationMessage(6, 2, nil))
			soon()
			other.send(gobgp.NewBGPNotificationMessage(6, 2, nil))
		}, false},
		{"better, then the client's again", func(_, other *fakePeer) {
			other.send(better())
			other.send(withdrawal(shared))
		}, true},
		{"again and again", func(_, other *fakePeer) {
			for range 200 {
				other.send(better())
				other.send(withdrawal(shared))
				time.Sleep(5 * time.Millisecond) // longer than leftoverDelay in all
			}
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, d := testSpeaker(t, Config{RestartDeferral: time.Second})
			d.ExportPrefixes = []netip.Prefix{shared}
			var peers []*fakePeer
			addresses := []string{uniqueLoopback(t), uniqueLoopback(t), uniqueLoopback(t)}
			for i, a := range addresses {
				d.Sessions = append(d.Sessions, passive(a))
				if i == 0 {
					d.Sessions[i].ReflectorClient, d.Sessions[i].ReflectorClusterID = true, ip("10.99.0.1")
				}
			}
			mustSet(t, s, d)
			for i, a := range addresses {
				o := fakeOptions{as: 64512, id: fmt.Sprintf("10.99.8.%d", 1+i)}
				peers = append(peers, dialFake(t, a, listenOf(d), o))
				awaitSession(t, s, a, "Established", established)
			}
			client, other, third := peers[0], peers[1], peers[2]
			client.send(update("10.0.0.2", 0, 100, shared))
			third.await("the client's route", func() bool { return third.routes[shared] != nil })
			time.Sleep(1500 * time.Millisecond) // a second after it came up a session may be sent all routes again
			c.events(client, other)
			third.await("the route to go or to stay", func() bool { return (third.routes[shared] != nil) == c.has })
			time.Sleep(3 * leftoverDelay) // it must stay so
			third.mu.Lock()
			defer third.mu.Unlock()
			if has := third.routes[shared] != nil; has != c.has {
				t.Errorf("the peer has the route: %v", has)
			}
			if !c.has && slices.ContainsFunc(third.messages, func(m *gobgp.BGPMessage) bool {
				return m.Header.Type == gobgp.BGP_MSG_NOTIFICATION
			}) {
				t.Error("the session of the third peer ended")
			}
		})
	}
}

var shared = pfx("10.44.8.0/24")

func better() *gobgp.BGPMessage { return update("10.0.0.3", 0, 200, shared) }

// TestRouteThatComesAndGoesWhileAPeerReadsNothing: two routers announce and withdraw a prefix in turn while a third one
// reads nothing. When it reads again it is not left with the route.
func TestRouteThatComesAndGoesWhileAPeerReadsNothing(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{RestartDeferral: time.Second})
	own := manyPrefixes(500)
	d.Originated = bulky(own)
	d.ExportPrefixes = []netip.Prefix{shared}
	var addresses []string
	for i := range 3 {
		addresses = append(addresses, uniqueLoopback(t))
		sess := passive(addresses[i])
		sess.PeerAS, sess.Type = uint32(65001+i), bgp.SessionGlobal
		d.Sessions = append(d.Sessions, sess)
	}
	mustSet(t, s, d)
	options := func(i int) fakeOptions { return fakeOptions{as: uint32(65001 + i), id: fmt.Sprintf("10.99.7.%d", 1+i)} }
	conn := dialDeaf(t, addresses[2], listenOf(d), options(2))
	first := dialFake(t, addresses[0], listenOf(d), options(0))
	second := dialFake(t, addresses[1], listenOf(d), options(1))
	for _, a := range addresses {
		awaitSession(t, s, a, "Established", established)
	}
	time.Sleep(1500 * time.Millisecond) // a second after it came up a session may be sent all routes again
	fill(t, s, ip(addresses[2]), conn)
	table := routeTable{}
	from := func(hop string) func() bool {
		return func() bool { p := table[shared].Paths; return len(p) == 1 && p[0].NextHop == ip(hop) }
	}
	worse := update("10.0.0.2", 65001, 0, shared)
	worse.Body.(*gobgp.BGPUpdate).PathAttributes[0] = gobgp.NewPathAttributeOrigin(2) // INCOMPLETE
	first.send(worse)
	awaitRoutes(t, s, table, "the first route", from("10.0.0.2"))
	second.send(update("10.0.0.3", 65002, 0, shared))
	awaitRoutes(t, s, table, "the better one", from("10.0.0.3"))
	first.send(withdrawal(shared))
	second.send(withdrawal(shared))
	awaitRoutes(t, s, table, "no route", func() bool { return len(table) == 0 })
	time.Sleep(3 * leftoverDelay) // the prefix is looked up while the peer still reads nothing

	third := &fakePeer{t: t, conn: conn, routes: map[netip.Prefix]*gobgp.BGPUpdate{}}
	third.changed = sync.NewCond(&third.mu)
	go third.receive(options(2))
	quiet := 0 // until nothing comes any more
	for n := -1; quiet < 4; time.Sleep(leftoverDelay) {
		if now := third.received(gobgp.BGP_MSG_UPDATE); now != n {
			n, quiet = now, 0
		} else {
			quiet++
		}
	}
	third.mu.Lock()
	defer third.mu.Unlock()
	if len(third.routes) != len(own) || third.routes[shared] != nil {
		t.Errorf("the peer has %d routes, %s among them: %v", len(third.routes), shared, third.routes[shared] != nil)
	}
}
