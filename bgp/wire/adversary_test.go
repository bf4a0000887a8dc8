package wire

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/bgp/wire/message"
)

// short is how long a test waits for something that must not happen.
const short = 500 * time.Millisecond

func (e *end) listen() netip.AddrPort {
	e.t.Helper()
	if err := e.gate.Listen([]netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}); err != nil {
		e.t.Fatal(err)
	}
	return addressOf(e.gate.listeners[0].socket.Addr())
}

func (e *end) noSession(why string) {
	e.t.Helper()
	select {
	case <-e.conns:
		e.t.Error("a session came up although " + why)
	case <-time.After(short):
	}
}

// A host that is too many hops away sends all that it takes for a session with the third packet of its handshake, which
// the kernel accepts before the least TTL is set.
func TestFarHostIsNotThePeer(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "127.0.0.2", Peer{Passive: true, TTL: 255, MinTTL: 255})
	to := e.listen()
	e.gate.Ready(e.addr, true)
	d := net.Dialer{LocalAddr: tcpAddr(e.addr, 0), Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 20)
		})
	}}
	c, err := d.Dial("tcp4", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(slices.Concat(mustOpen(t, 64512, "10.0.0.2"), message.Keepalive(), message.EndOfRIB(false)))
	e.noSession("the host is too far away")
}

// A connection without a signature, made just before the listener has the key of the session, is not the session.
func TestUnsignedConnectionFromBefore(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "127.0.0.9", Peer{Passive: true})
	to, a := e.listen(), netip.MustParseAddr("127.0.0.2")
	for range 10 {
		var connecting sync.WaitGroup
		stop := make(chan struct{})
		connecting.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				d := net.Dialer{Timeout: 30 * time.Millisecond, LocalAddr: tcpAddr(a, 0)}
				if c, err := d.Dial("tcp4", to.String()); err == nil {
					_, _ = c.Write(slices.Concat(mustOpen(t, 64513, "10.0.0.2"), message.Keepalive()))
					connecting.Go(func() { <-stop; _ = c.Close() })
				}
			}
		})
		time.Sleep(20 * time.Millisecond) // connections are in all states
		p := Peer{Address: a, Passive: true, Password: "secret", LocalAS: 64512, PeerAS: 64513, Hold: 90}
		if err := e.gate.Set(p, Limit{}, &counted{}); err != nil {
			t.Fatal(err)
		}
		e.gate.Ready(a, true)
		select {
		case <-e.conns:
			t.Fatal("an unsigned connection is the session that has a password")
		case <-time.After(100 * time.Millisecond):
		}
		close(stop)
		connecting.Wait()
		e.gate.Remove(a)
	}
}

// A connection that was there before the peer was held down for too many routes does not become a session.
func TestHeldPeerHasNoWayIn(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	e.gate.SetLimit(e.addr, Limit{Most: 1})
	other, c := e.establish()
	second := e.rawPeer(nil)
	if m, err := readMessage(second); err != nil || m[18] != bgp.BGP_MSG_OPEN {
		t.Fatalf("no OPEN: %x, %v", m, err)
	}
	attrs := []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4, 10, 0, 0, 2} // ORIGIN, AS_PATH, NEXT_HOP
	_, _ = other.Write(rawUpdate(nil, attrs, []byte{24, 20, 0, 0, 24, 20, 0, 1}))
	for m := []byte(nil); len(m) < bgp.BGP_HEADER_LENGTH || m[18] != bgp.BGP_MSG_NOTIFICATION; {
		var err error
		if m, err = readMessage(c); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.Close()
	_ = second.SetReadDeadline(time.Now().Add(20 * time.Second))
	if m, err := readMessage(second); err != nil || m[18] != bgp.BGP_MSG_NOTIFICATION || m[20] != message.SubRejected {
		t.Errorf("the connection from before gets %x, %v", m, err)
	}
	e.gate.Ready(e.addr, true)
	_, _ = second.Write(slices.Concat(mustOpen(t, 64512, "10.0.0.2"), message.Keepalive()))
	e.noSession("the peer is held down")
}

// The speaker leaves Active and closes a connection that it gets: no other is confirmed before it is back in Active,
// and routes that it keeps of an earlier session are not forgotten.
func TestRefusedHandOver(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	other, c := e.establish(graceful(false, true))
	_ = other.Close()
	for err := error(nil); err == nil; _, err = readMessage(c) {
	}
	_ = c.Close()
	refused := make(chan struct{}, 8)
	e.gate.cfg.HandOver = func(_ context.Context, c net.Conn) {
		e.gate.Ready(e.addr, false)
		_ = c.Close()
		refused <- struct{}{}
	}
	e.gate.Ready(e.addr, true)
	for i := range 2 {
		o := e.rawPeer(mustOpen(t, 64512, "10.0.0.2"))
		_, _ = o.Write(message.Keepalive())
		if i == 0 {
			<-refused
		}
	}
	select {
	case <-refused:
		t.Error("a second connection was handed over although the speaker is not in Active")
	case <-time.After(short):
	}
	if !e.peer.keepsStale() {
		t.Error("the stale routes are forgotten")
	}
}

// A peer whose UPDATEs are all ignored is still heard.
func TestIgnoredUpdateIsAKeepalive(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	other, c := e.establish()
	_, _ = other.Write(message.EndOfRIB(true))
	if m, err := readMessage(c); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
		t.Errorf("read %x, %v", m, err)
	}
}

// TestLoserWaitsForTheOtherOpen: the connection that would lose a collision is ready first. It does not become the
// session before the OPEN on the other one.
func TestLoserWaitsForTheOtherOpen(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true}) // the peer is greater: the incoming one wins
	ours, theirs := wires(t)
	defer theirs.Close()
	go e.peer.open(newConn(e.peer, e.peer.settings(), ours, false))
	in := e.rawPeer(nil)
	for _, c := range []net.Conn{theirs, in} {
		if m, err := readMessage(c); err != nil || m[18] != bgp.BGP_MSG_OPEN {
			t.Fatalf("no OPEN: %x, %v", m, err)
		}
	}
	e.gate.Ready(e.addr, true)
	start := time.Now()
	_, _ = theirs.Write(slices.Concat(mustOpen(t, 64512, "10.0.0.2"), message.Keepalive()))
	_ = theirs.SetReadDeadline(start.Add(short))
	if m, err := readMessage(theirs); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the loser gets %x, %v", m, err)
	}
	_, _ = in.Write(slices.Concat(mustOpen(t, 64512, "10.0.0.2"), message.Keepalive()))
	if c := e.session(); !c.incoming && time.Since(start) < yieldTime { // on a machine that stalls, it may be
		t.Error("the loser is the session")
	}
}

// A number of routes that moves around a limit does not report it again and again.
func TestLevelOfALimit(t *testing.T) {
	t.Parallel()
	limit := Limit{Warn: 80, Most: 100}
	for _, c := range []struct {
		n         int
		was, want Level
	}{{80, Normal, Normal}, {81, Normal, Many}, {75, Many, Many}, {73, Many, Many}, {72, Many, Normal},
		{75, Normal, Normal}, {100, Many, Many}, {101, Many, TooMany}, {101, Normal, TooMany}} {
		if got := limit.level(c.n, c.was); got != c.want {
			t.Errorf("%d routes, level was %d: %d, want %d", c.n, c.was, got, c.want)
		}
	}
	if got := (Limit{}).level(1<<20, Normal); got != Normal {
		t.Errorf("without a limit: %d", got)
	}
}
