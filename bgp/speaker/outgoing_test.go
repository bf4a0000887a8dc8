package speaker

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/eapache/channels"
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
	for blocked := 0; blocked < 100; time.Sleep(2 * time.Millisecond) {
		if on, _ := s.current().gate.Blocked(peer); on {
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
func dialDeaf(t *testing.T, local, speaker string, o fakeOptions) net.Conn {
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

func TestDrain(t *testing.T) {
	drain(nil)
	queue := channels.NewInfiniteChannel()
	for round := range 100 {
		for i := range 100 {
			queue.In() <- i
		}
		if drain(queue); queue.Len() != 0 {
			t.Fatalf("round %d: %d messages remain", round, queue.Len())
		}
	}
	queue.In() <- 1
	queue.Close()
	drain(queue)
	if _, open := <-queue.Out(); open {
		t.Error("a message of a closed queue remains")
	}
	drain(queue)
}

func TestQueueOfAnotherGoBGP(t *testing.T) {
	type machine struct{ outgoingCh chan any }
	type peer struct{ fsm *machine }
	_, _ = machine{}.outgoingCh, peer{}.fsm
	err := checkOutgoing(reflect.TypeFor[struct{ neighborMap map[netip.Addr]*peer }]())
	if err == nil || !strings.Contains(err.Error(), "has no outgoingCh of type") {
		t.Errorf("error %v", err)
	}
}
