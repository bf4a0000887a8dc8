package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
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
