package speaker

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire/message"
)

// TestSlowReaderComesBack: peers request all routes again and again, read none, and end their sessions. The next
// sessions have the routes of then, no earlier ones.
func TestSlowReaderComesBack(t *testing.T) {
	t.Parallel()
	const peers, routes, gone = 6, 500, 10 // half of the peers would get nothing
	s, d := testSpeaker(t, Config{RestartDeferral: time.Second})
	for i := range peers {
		d.Sessions = append(d.Sessions, passive(fmt.Sprintf("127.0.9.%d", 11+i)))
	}
	options := func(i int) fakeOptions {
		return fakeOptions{as: 64512, id: fmt.Sprintf("10.99.9.%d", 11+i), graceful: true}
	}
	prefixes := manyPrefixes(routes)
	d.Originated = bulky(prefixes)
	mustSet(t, s, d)
	for i, sess := range d.Sessions {
		conn := dialDeaf(t, sess.Address.String(), listenOf(d), options(i))
		awaitSession(t, s, sess.Address.String(), "Established", established)
		fill(t, s, sess.Address, conn)
		conn.Write(bytes.Repeat(message.New(gobgp.BGP_MSG_ROUTE_REFRESH, 0, 1, 0, 1), 20))
		put(conn, gobgp.NewBGPNotificationMessage(gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_PEER_DECONFIGURED, nil))
	}
	for _, sess := range d.Sessions {
		awaitSession(t, s, sess.Address.String(), "the end", func(st SessionStatus) bool { return st.Flaps > 0 })
	}
	d.Originated = d.Originated[gone:]
	mustSet(t, s, d)
	for i, sess := range d.Sessions {
		p := dialFake(t, sess.Address.String(), listenOf(d), options(i))
		p.await("the routes", func() bool { return p.eor && len(p.routes) >= routes-gone })
		p.mu.Lock()
		for _, m := range p.messages {
			if u, ok := m.Body.(*gobgp.BGPUpdate); ok && slices.ContainsFunc(u.NLRI, func(n gobgp.PathNLRI) bool {
				return slices.Contains(prefixes[:gone], n.NLRI.(*gobgp.IPAddrPrefix).Prefix)
			}) {
				t.Errorf("%s was sent a route that had been withdrawn before the session", sess.Address)
				break
			}
		}
		p.mu.Unlock()
	}
}

// TestRouteThatComesAndGoesWhileAPeerReadsNothing: two routers announce and withdraw a prefix in turn. A third one that
// has read nothing meanwhile is not left with the route.
func TestRouteThatComesAndGoesWhileAPeerReadsNothing(t *testing.T) {
	t.Parallel()
	third := whileAPeerReadsNothing(t, func(first, second *fakePeer, await func(string, int)) {
		first.send(worse(1, shared))
		await("10.0.0.2", 1)
		second.send(update("10.0.0.3", 65002, 0, shared))
		await("10.0.0.3", 1)
		first.send(withdrawal(shared))
		second.send(withdrawal(shared))
		await("nobody", 0)
	})
	third.mu.Lock()
	defer third.mu.Unlock()
	if third.routes[shared] != nil {
		t.Errorf("the peer has %s", shared)
	}
}

// TestRouteThatChangesWhileAPeerReadsNothing: of two routers with the same prefixes the second one is better. A third
// one that has read nothing meanwhile gets those of the second, or of the first when the second has none any more.
func TestRouteThatChangesWhileAPeerReadsNothing(t *testing.T) {
	t.Parallel()
	for _, last := range []uint32{65001, 65002} {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			t.Parallel()
			var prefixes []netip.Prefix
			for i := range 30 { // each pair is in the right order by chance half of the times
				prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 44, byte(i), 0}), 24))
			}
			third := whileAPeerReadsNothing(t, func(first, second *fakePeer, await func(string, int)) {
				for i, p := range prefixes {
					first.send(worse(uint32(i), p))
				}
				await("10.0.0.2", len(prefixes))
				for _, p := range prefixes {
					second.send(update("10.0.0.3", 65002, 0, p))
				}
				await("10.0.0.3", len(prefixes))
				if last == 65001 {
					second.send(withdrawal(prefixes...))
					await("10.0.0.2", len(prefixes))
				}
			})
			third.mu.Lock()
			defer third.mu.Unlock()
			for _, p := range prefixes {
				if path := asPathOf(third.routes[p]); !slices.Equal(path, []uint32{64512, last}) {
					t.Errorf("%s has the AS path %v", p, path)
				}
			}
		})
	}
}

// No more waits for a peer that takes no data than there are routes. Others are not touched, and it gets the last state
// of each route when it reads again.
func TestPeerThatTakesNoData(t *testing.T) {
	t.Parallel()
	for name, paths := range map[string]bool{"routes": false, "paths": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const routes, changes = 500, 8_000 // of a kilobyte: more than the kernel buffers
			s, d := testSpeaker(t, Config{})
			addresses := []string{uniqueLoopback(t), uniqueLoopback(t), uniqueLoopback(t)}
			for i, a := range addresses { // routes are passed on among clients
				d.Sessions = append(d.Sessions, passive(a))
				d.Sessions[i].ReflectorClient, d.Sessions[i].ReflectorClusterID = true, ip("10.99.0.1")
			}
			d.ExportPrefixes = []netip.Prefix{pfx("20.0.0.0/8")}
			mustSet(t, s, d)
			options := func(i int) fakeOptions {
				return fakeOptions{as: 64512, id: fmt.Sprintf("10.99.1.%d", 1+i), addPath: paths && i == 0}
			}
			conn := dialDeaf(t, addresses[0], listenOf(d), options(0))
			reader := dialFake(t, addresses[1], listenOf(d), options(1))
			noisy := dialFake(t, addresses[2], listenOf(d), options(2))
			for _, a := range addresses {
				awaitSession(t, s, a, "Established", established)
			}
			prefixes := manyPrefixes(routes)
			long := gobgp.NewPathAttributeCommunities(bulky(prefixes[:1])[0].Communities)
			for i := range changes {
				m := update("10.0.0.2", uint32(100_000+i), 100, prefixes[i%routes])
				u := m.Body.(*gobgp.BGPUpdate)
				u.PathAttributes = append(u.PathAttributes, long)
				noisy.send(m)
			}
			last := func(p *fakePeer) func() bool {
				return func() bool {
					for i, prefix := range prefixes {
						if !slices.Equal(asPathOf(p.routes[prefix]), []uint32{uint32(100_000 + changes - routes + i)}) {
							return false
						}
					}
					return true
				}
			}
			reader.await("all changes", last(reader))
			// one more counts for the batch that the sender has
			if n := s.taps.of(ip(addresses[0])).outgoing.Load().Waiting(); n <= 1 || n > routes+1 {
				t.Errorf("%d changes wait for %d routes", n, routes)
			}
			if !paths { // the tests do not read messages with identifiers
				late := lateReader(t, conn, options(0))
				late.await("all routes", last(late))
			}
			for i, a := range addresses {
				if st, _ := s.status.Get(ip(a)); st.Flaps > 0 {
					t.Errorf("session %d was lost", i)
				}
			}
		})
	}
}

// worse announces a route that is not the best if there is another one, with attributes that no other i has.
func worse(i uint32, p netip.Prefix) *gobgp.BGPMessage {
	m := update("10.0.0.2", 65001, 0, p)
	u := m.Body.(*gobgp.BGPUpdate)
	u.PathAttributes[0] = gobgp.NewPathAttributeOrigin(2) // INCOMPLETE
	u.PathAttributes = append(u.PathAttributes, gobgp.NewPathAttributeCommunities([]uint32{i}))
	return m
}

func asPathOf(u *gobgp.BGPUpdate) (path []uint32) {
	if u == nil {
		return nil
	}
	for _, a := range u.PathAttributes {
		if p, ok := a.(*gobgp.PathAttributeAsPath); ok {
			for _, segment := range p.Value {
				path = append(path, segment.GetAS()...)
			}
		}
	}
	return path
}

// whileAPeerReadsNothing has two routers cause events while a third one reads nothing, and returns that one when it has
// read all. await waits until so many prefixes are in the table, with one path, by a next hop.
func whileAPeerReadsNothing(t *testing.T,
	events func(first, second *fakePeer, await func(hop string, n int))) (third *fakePeer) {
	t.Helper()
	s, d := testSpeaker(t, Config{RestartDeferral: time.Second})
	own := manyPrefixes(500)
	d.Originated = bulky(own)
	d.ExportPrefixes = []netip.Prefix{pfx("10.44.0.0/16")}
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
	events(first, second, func(hop string, n int) {
		t.Helper()
		awaitRoutes(t, s, table, fmt.Sprint(n, " by ", hop), func() bool {
			for _, r := range table {
				if len(r.Paths) != 1 || r.Paths[0].NextHop.String() != hop {
					return false
				}
			}
			return len(table) == n
		})
	})
	third = lateReader(t, conn, options(2))
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
	for _, p := range own {
		if third.routes[p] == nil {
			t.Errorf("the peer has no %s", p)
		}
	}
	return third
}

// lateReader reads what a peer that dialDeaf has connected was sent.
func lateReader(t *testing.T, conn net.Conn, o fakeOptions) *fakePeer {
	p := &fakePeer{t: t, conn: conn, routes: map[netip.Prefix]*gobgp.BGPUpdate{}}
	p.changed = sync.NewCond(&p.mu)
	go p.receive(o)
	return p
}

// bulky returns routes that need an UPDATE of a kilobyte each: a few times all of them is more than the kernel buffers.
func bulky(prefixes []netip.Prefix) (list []bgp.Origin) {
	for i, p := range prefixes {
		communities := []uint32{uint32(i)}
		for c := range uint32(250) {
			communities = append(communities, 65000<<16|c)
		}
		list = append(list, bgp.Origin{Prefix: p, LocalPref: 100, Communities: communities})
	}
	return list
}

// fill requests all routes for a peer that reads nothing, until the kernel takes no more of them.
func fill(t *testing.T, s *Speaker, peer netip.Addr, conn net.Conn) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	outgoing := s.taps.of(peer).outgoing.Load()
	for blocked := 0; blocked < 100; time.Sleep(2 * time.Millisecond) {
		if outgoing.Waiting() > 0 { // the sender does not come to it
			blocked++
			continue
		}
		blocked = 0
		conn.Write(message.New(gobgp.BGP_MSG_ROUTE_REFRESH, 0, 1, 0, 1))
		if time.Now().After(deadline) {
			t.Fatal("the peer still takes data")
		}
	}
}

// dialDeaf makes a session over a connection with a small window, of which nothing is read after the OPEN exchange.
func dialDeaf(t testing.TB, local, speaker string, o fakeOptions) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
	d.Control = func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096)
		})
	}
	conn, err := d.DialContext(context.Background(), "tcp", speaker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	put(conn, o.open(), gobgp.NewBGPKeepAliveMessage())
	for _, m := range []string{"OPEN", "KEEPALIVE"} {
		if _, err := readMessage(conn); err != nil {
			t.Fatalf("no %s: %v", m, err)
		}
	}
	return conn
}
