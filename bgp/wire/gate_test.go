package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

var (
	_ net.Conn     = (*conn)(nil)
	_ syscall.Conn = (*conn)(nil) // GoBGP asserts it, unchecked
)

// end is one end of a session in a test: a gate with one peer, and a speaker that takes its connections.
type end struct {
	t     *testing.T
	gate  *Gate
	peer  *peer
	addr  netip.Addr
	conns chan net.Conn // that the speaker has got, after its own OPEN exchange

	mu     sync.Mutex
	events []Event
	came   *sync.Cond
}

// counted is a Receiver that counts the routes of a peer.
type counted struct{ announced, withdrawn atomic.Int64 }

func (c *counted) Begin() {}
func (c *counted) End()   {}
func (c *counted) Update(withdrawn, announced []message.Route, _ netip.Addr) {
	c.withdrawn.Add(int64(len(withdrawn)))
	c.announced.Add(int64(len(announced)))
}

func newEnd(t *testing.T, self, other string, p Peer) *end {
	t.Helper()
	e := &end{t: t, addr: netip.MustParseAddr(other), conns: make(chan net.Conn, 16)}
	e.came = sync.NewCond(&e.mu)
	e.gate = New(Config{RouterID: netip.MustParseAddr(self), ConnectRetry: time.Second, OpenTimeout: 20 * time.Second,
		HandOver: e.speak,
		Event: func(_ netip.Addr, ev Event) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.events = append(e.events, ev)
			e.came.Broadcast()
		},
		Stranger:   func(netip.Addr, netip.Addr) {},
		Accepting:  func(netip.AddrPort, error) {},
		Restarting: func(netip.Addr) bool { return false },
		Deferring:  func() bool { return false },
		Waiting:    func(netip.Addr) bool { return false },
		Forwarding: func() time.Duration { return 0 },
		Opening:    func(netip.Addr, bool) {}, Writing: func(netip.Addr) {},
		Leaving: func(netip.Addr, Cause) {},
	})
	t.Cleanup(e.gate.Close)
	p.Address = e.addr
	if p.LocalAS == 0 {
		p.LocalAS, p.PeerAS = 64512, 64512
	}
	p.Hold, p.RestartTime = 240, 120
	if err := e.gate.Set(p, Limit{}, &counted{}); err != nil {
		t.Fatal(err)
	}
	e.peer = e.gate.peer(e.addr)
	return e
}

// speak does on a connection what GoBGP does: its own OPEN exchange.
func (e *end) speak(_ context.Context, c net.Conn) {
	go func() {
		open, err := openMessage(64512, 240, e.gate.cfg.RouterID, nil)
		if err != nil {
			panic(err)
		}
		for _, m := range [][]byte{open, message.Keepalive()} {
			if _, err := c.Write(m); err != nil {
				return
			}
			if _, err := readMessage(c); err != nil {
				return
			}
		}
		_ = c.SetWriteDeadline(time.Time{})
		e.conns <- c
	}()
}

func readMessage(c io.Reader) ([]byte, error) {
	m := make([]byte, bgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, m); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(m[16:]))
	m = append(m, make([]byte, max(0, n-bgp.BGP_HEADER_LENGTH))...)
	_, err := io.ReadFull(c, m[bgp.BGP_HEADER_LENGTH:])
	return m, err
}

func rawUpdate(withdrawn, attrs, nlri []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn)))
	b = binary.BigEndian.AppendUint16(append(b, withdrawn...), uint16(len(attrs)))
	return message.New(bgp.BGP_MSG_UPDATE, slices.Concat(b, attrs, nlri)...)
}

func notification(code, sub uint8) *message.Notification {
	return &message.Notification{Code: code, Sub: sub}
}

// await waits for an event.
func await[E Event](e *end, what string, cond func(E) bool) E {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	timer := time.AfterFunc(20*time.Second, e.came.Broadcast)
	defer timer.Stop()
	for start := time.Now(); ; e.came.Wait() {
		for _, ev := range e.events {
			if ev, ok := ev.(E); ok && cond(ev) {
				return ev
			}
		}
		if time.Since(start) >= 20*time.Second {
			e.t.Fatalf("timeout while waiting for %s; events: %+v", what, e.events)
		}
	}
}

func count[E Event](e *end, cond func(E) bool) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.events {
		if ev, ok := ev.(E); ok && cond(ev) {
			n++
		}
	}
	return n
}

func (e *end) session() *conn {
	e.t.Helper()
	select {
	case c := <-e.conns:
		return c.(*conn)
	case <-time.After(20 * time.Second):
		e.t.Fatalf("no session; events: %+v", e.events)
		return nil
	}
}

// wires returns the two ends of a new TCP connection.
func wires(t *testing.T) (dialed, accepted *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	d, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return d.(*net.TCPConn), a.(*net.TCPConn)
}

// Both ends have dialled, and both connections are there before either OPEN: exactly one session comes up, the same one
// at both ends, each time (RFC 4271 section 6.8).
func TestForcedCollisions(t *testing.T) {
	t.Parallel()
	collision := func(e Ended) bool { return e.Cause == CauseCollision || e.Received != nil && e.Received.Sub == 7 }
	for i := range 100 {
		ids := []string{"10.0.0.1", "10.0.0.2"}
		if i%2 == 1 {
			slices.Reverse(ids)
		}
		a, b := newEnd(t, ids[0], "10.0.9.2", Peer{Passive: true}), newEnd(t, ids[1], "10.0.9.1", Peer{Passive: true})
		a1, b1 := wires(t) // that a has dialled
		b2, a2 := wires(t) // that b has
		start := make(chan struct{})
		for _, begin := range []func(){
			func() { a.peer.open(newConn(a.peer, a.peer.settings(), a1, false)) },
			func() { a.peer.open(newConn(a.peer, a.peer.settings(), a2, true)) },
			func() { b.peer.open(newConn(b.peer, b.peer.settings(), b1, true)) },
			func() { b.peer.open(newConn(b.peer, b.peer.settings(), b2, false)) },
		} {
			go func() { <-start; begin() }()
		}
		close(start)
		for _, e := range []*end{a, b} { // else the first session may be up before the second connection has begun
			for count(e, func(Connected) bool { return true }) < 2 {
				runtime.Gosched()
			}
			go e.gate.Ready(e.addr, true)
		}
		atA, atB := a.session(), b.session()
		if atA.LocalAddr().String() != atB.RemoteAddr().String() {
			t.Fatalf("collision %d: the ends have chosen different connections", i)
		}
		if winner := atA.incoming; winner != (i%2 == 0) {
			t.Errorf("collision %d: not the connection of the end with the greater router ID", i)
		}
		await(a, "the loser at one end", collision)
		await(b, "the loser at the other end", collision)
		for _, e := range []*end{a, b} {
			if n := count(e, func(Up) bool { return true }); n != 1 {
				t.Fatalf("collision %d: %d sessions came up", i, n)
			}
			e.gate.Close()
		}
		_, _ = atA.Close(), atB.Close()
	}
}

// A connection of the peer is not established while one of ours may come to the peer behind it: BIRD would take that
// for the sign of our restart (RFC 4724 section 5), and end the session.
func TestPeerHasToAnswerOurConnectionFirst(t *testing.T) {
	t.Parallel()
	for _, ids := range [][]string{{"10.0.0.1", "10.0.0.2"}, {"10.0.0.2", "10.0.0.1"}} {
		t.Run(ids[0], func(t *testing.T) {
			t.Parallel()
			e := newEnd(t, ids[0], "10.0.9.2", Peer{Passive: true})
			e.gate.Ready(e.addr, true)
			e.peer.mu.Lock()
			e.peer.connecting = true // the packets are on their way
			e.peer.mu.Unlock()
			in := e.rawPeer(mustOpen(t, 64512, ids[1]))
			silent(t, in, connectTime/2)
			ours, theirs := wires(t)
			go e.peer.open(newConn(e.peer, e.peer.settings(), ours, false))
			silent(t, in, 2*connectTime)
			survivor := in
			if ids[0] > ids[1] {
				survivor = theirs
			}
			if m, err := readMessage(theirs); err != nil || m[18] != bgp.BGP_MSG_OPEN {
				t.Fatalf("%x, %v", m, err)
			}
			if _, err := theirs.Write(mustOpen(t, 64512, ids[1])); err != nil {
				t.Fatal(err)
			}
			if m, err := readMessage(survivor); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
				t.Errorf("the survivor gets %x, %v", m, err)
			}
		})
	}
	t.Run("no answer", func(t *testing.T) { // from a host that drops our packets
		t.Parallel()
		e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
		e.gate.Ready(e.addr, true)
		e.peer.mu.Lock()
		e.peer.connecting = true
		e.peer.mu.Unlock()
		in := e.rawPeer(mustOpen(t, 64512, "10.0.0.2"))
		if m, err := readMessage(in); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
			t.Errorf("%x, %v", m, err)
		}
	})
}

// silent checks that nothing comes on a connection for a time.
func silent(t *testing.T, c net.Conn, d time.Duration) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(d))
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes came, %v", n, err)
	}
	_ = c.SetReadDeadline(time.Time{})
}

// rawPeer is the other end of an incoming connection of e.
func (e *end) rawPeer(open []byte) *net.TCPConn {
	e.t.Helper()
	other, ours := wires(e.t)
	e.t.Cleanup(func() { _ = other.Close() })
	go e.peer.open(newConn(e.peer, e.peer.settings(), ours, true))
	if open == nil {
		return other
	}
	if _, err := other.Write(open); err != nil {
		e.t.Fatal(err)
	}
	if m, err := readMessage(other); err != nil || m[18] != bgp.BGP_MSG_OPEN {
		e.t.Fatalf("no OPEN: %x, %v", m, err)
	}
	return other
}

func mustOpen(t *testing.T, as uint32, id string, caps ...bgp.ParameterCapabilityInterface) []byte {
	t.Helper()
	m, err := openMessage(as, 240, netip.MustParseAddr(id), append(caps, bgp.NewCapFourOctetASNumber(as)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func graceful(restarted, forwarding bool) bgp.ParameterCapabilityInterface {
	return bgp.NewCapGracefulRestart(restarted, false, 120,
		[]*bgp.CapGracefulRestartTuple{bgp.NewCapGracefulRestartTuple(bgp.RF_IPv4_UC, forwarding)})
}

// The speaker takes a connection in Active alone. Until then the peer gets no KEEPALIVE, and a connection that ends
// meanwhile is not handed over.
func TestHandOverWaitsForTheSpeaker(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	dead := e.rawPeer(mustOpen(t, 64512, "10.0.0.2"))
	await(e, "the OPEN", func(Opened) bool { return true })
	_ = dead.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	if m, err := readMessage(dead); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("before the speaker is ready came %x, %v", m, err)
	}
	_ = dead.Close()
	await(e, "the end", func(x Ended) bool { return x.Opened && x.Cause == CauseConnection })
	e.gate.Ready(e.addr, true)
	alive := e.rawPeer(mustOpen(t, 64512, "10.0.0.2"))
	if m, err := readMessage(alive); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
		t.Fatalf("no KEEPALIVE: %x, %v", m, err)
	}
	if count(e, func(Up) bool { return true }) != 0 {
		t.Error("handed over before the KEEPALIVE of the peer")
	}
	_, _ = alive.Write(append(message.Keepalive(), message.EndOfRIB(false)...)) // more than the exchange reads
	c := e.session()
	if m, err := readMessage(c); err != nil || string(m) != string(message.EndOfRIB(false)) {
		t.Errorf("behind the exchange came %x, %v", m, err)
	}
	for _, a := range []net.Addr{c.LocalAddr(), c.RemoteAddr()} {
		if _, ok := a.(*net.TCPAddr); !ok {
			t.Errorf("%T is no *net.TCPAddr", a)
		}
	}
}

// establish brings a session with a raw peer up.
func (e *end) establish(caps ...bgp.ParameterCapabilityInterface) (other *net.TCPConn, c *conn) {
	e.t.Helper()
	e.gate.Ready(e.addr, true)
	other = e.rawPeer(mustOpen(e.t, e.peer.settings().PeerAS, "10.0.0.2", caps...))
	if m, err := readMessage(other); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
		e.t.Fatalf("no KEEPALIVE: %x, %v", m, err)
	}
	_, _ = other.Write(message.Keepalive())
	return other, e.session()
}

// A message that does not come from the peer interrupts a read, and a deadline that the speaker set meanwhile holds.
func TestInjection(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	other, c := e.establish()
	got := make(chan []byte)
	go func() { m, _ := readMessage(c); got <- m }()
	c.injectMessage(message.EndOfRIB(false))
	if m := <-got; string(m) != string(message.EndOfRIB(false)) {
		t.Fatalf("read %x", m)
	}
	if !e.gate.Injected(e.addr) || e.gate.Injected(e.addr) {
		t.Error("the End-of-RIB is not known as injected, once")
	}
	_ = c.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the speaker's deadline is lost: %v", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	_, _ = other.Write(message.Keepalive())
	if m, err := readMessage(c); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
		t.Errorf("read %x, %v", m, err)
	}
}

// A NOTIFICATION arrives although the peer has sent much that was not read: the kernel would answer with a RST, and
// drop it.
func TestNotificationIsNotLost(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	other, c := e.establish()
	for range 1000 {
		if _, err := other.Write(message.EndOfRIB(false)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Write(message.Cease(message.SubReset).Message()); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if m, err := readMessage(other); err != nil || m[18] != bgp.BGP_MSG_NOTIFICATION || m[20] != message.SubReset {
		t.Errorf("read %x, %v", m, err)
	}
}

// The end of a session is what the wire has shown, and the speaker reads a NOTIFICATION unless the peer's routes are
// kept.
func TestEndOfASession(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		caps []bgp.ParameterCapabilityInterface
		end  func(other *net.TCPConn, c *conn)
		want Ended
	}{
		{"closed, with graceful restart", []bgp.ParameterCapabilityInterface{graceful(false, false)},
			func(o *net.TCPConn, _ *conn) { _ = o.Close() },
			Ended{Cause: CauseConnection, Graceful: true, RestartTime: 120 * time.Second}},
		{"closed", nil, func(o *net.TCPConn, _ *conn) { _ = o.Close() }, Ended{Cause: CauseConnection}},
		{"reset", nil, func(o *net.TCPConn, _ *conn) { _ = o.SetLinger(0); _ = o.Close() },
			Ended{Cause: CauseConnection}},
		{"NOTIFICATION, with graceful restart", []bgp.ParameterCapabilityInterface{graceful(false, false)},
			func(o *net.TCPConn, _ *conn) {
				_, _ = o.Write(message.Cease(message.SubShutdown).Message())
			},
			Ended{Cause: CauseNotification, Received: message.Cease(message.SubShutdown)}},
		{"malformed NOTIFICATION", nil,
			func(o *net.TCPConn, _ *conn) { _, _ = o.Write(message.New(bgp.BGP_MSG_NOTIFICATION)) },
			Ended{Cause: CauseConnection}},
		{"second OPEN", nil, func(o *net.TCPConn, _ *conn) { _, _ = o.Write(mustOpen(t, 64512, "10.0.0.2")) },
			Ended{Cause: CauseNotification, Sent: notification(message.CodeFSM, message.SubInEstablished)}},
		{"KEEPALIVE with a body", nil,
			func(o *net.TCPConn, _ *conn) { _, _ = o.Write(message.New(bgp.BGP_MSG_KEEPALIVE, 0)) },
			Ended{Cause: CauseNotification, Sent: notification(message.CodeHeader, message.SubLength)}},
		{"no marker", nil, func(o *net.TCPConn, _ *conn) { _, _ = o.Write(make([]byte, 19)) },
			Ended{Cause: CauseNotification, Sent: notification(message.CodeHeader, message.SubMarker)}},
		{"longer than 4,096 bytes", nil, func(o *net.TCPConn, _ *conn) {
			_, _ = o.Write(message.New(bgp.BGP_MSG_UPDATE, make([]byte, 5000)...))
		}, Ended{Cause: CauseNotification, Sent: notification(message.CodeHeader, message.SubLength)}},
		{"ended on this side", nil, func(_ *net.TCPConn, c *conn) {
			c.p.end(CauseLocal, message.Cease(message.SubReset))
		}, Ended{Cause: CauseLocal, Sent: message.Cease(message.SubReset)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
			other, conn := e.establish(c.caps...)
			c.end(other, conn)
			m, err := readMessage(conn)
			if c.want.Graceful != errors.Is(err, io.EOF) || !c.want.Graceful && (err != nil || m[18] != 3) {
				t.Errorf("the speaker reads %x, %v", m, err)
			}
			got := await(e, "the end", func(x Ended) bool { return x.Established })
			same := func(a, b *message.Notification) bool {
				return a == nil && b == nil || a != nil && b != nil && a.Code == b.Code && a.Sub == b.Sub
			}
			if got.Cause != c.want.Cause || got.Graceful != c.want.Graceful || got.RestartTime != c.want.RestartTime ||
				!same(got.Sent, c.want.Sent) || !same(got.Received, c.want.Received) {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			if got.Sent == nil {
				return
			}
			_ = conn.Close()
			for { // behind KEEPALIVEs
				m, err := readMessage(other)
				if err != nil {
					t.Fatalf("the peer gets no NOTIFICATION: %v", err)
				}
				if m[18] == bgp.BGP_MSG_NOTIFICATION {
					break
				}
			}
		})
	}
}

// A peer that takes no data loses its session after the send hold time (RFC 9687).
func TestSendHoldTimer(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	_, c := e.establish(graceful(false, false))
	c.sendHold = time.Second
	read := make(chan error, 1)
	go func() {
		m, err := readMessage(c)
		if err == nil && m[18] != bgp.BGP_MSG_NOTIFICATION {
			err = fmt.Errorf("read %x", m)
		}
		read <- err
	}()
	stop := make(chan struct{})
	go func() {
		filler := rawUpdate(make([]byte, 4000), nil, nil)
		c.sent.Off = true
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = c.Write(filler)
			}
		}
	}()
	if err := <-read; err != nil {
		t.Errorf("the speaker does not drop the routes: %v", err)
	}
	close(stop)
	got := await(e, "the end", func(x Ended) bool { return x.Established })
	if got.Cause != CauseSendHold || got.Graceful || got.Sent.Code != message.CodeSendHold {
		t.Errorf("%+v", got)
	}
}

// The number of routes is exact: the same route again does not count, nor does a withdrawn one, and with ADD-PATH each
// path does. The session ends with the first route above the limit.
func TestPrefixLimitIsExact(t *testing.T) {
	t.Parallel()
	for _, paths := range []bool{false, true} {
		e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
		e.gate.SetLimit(e.addr, Limit{Warn: 80, Most: 100})
		var caps []bgp.ParameterCapabilityInterface
		if paths {
			caps = append(caps, bgp.NewCapAddPath([]*bgp.CapAddPathTuple{
				bgp.NewCapAddPathTuple(bgp.RF_IPv4_UC, bgp.BGP_ADD_PATH_BOTH)}))
		}
		other, c := e.establish(caps...)
		encoded := func(from, to int) (list []byte) {
			for i := from; i < to; i++ {
				if paths {
					list = append(list, 0, 0, 0, byte(i), 24, 10, 0, 0) // one prefix
				} else {
					list = append(list, 24, 10, 0, byte(i))
				}
			}
			return list
		}
		send := func(u []byte) { _, _ = other.Write(u) }
		attrs := []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4, 10, 0, 0, 2}
		go func() {
			for range 5 {
				send(rawUpdate(nil, attrs, encoded(0, 85)))
			}
			send(rawUpdate(encoded(0, 85), nil, nil))
			send(rawUpdate(nil, attrs, encoded(100, 200)))
			send(rawUpdate(nil, attrs, encoded(200, 201)))
		}()
		kinds := ""
		for m, err := readMessage(c); err == nil; m, err = readMessage(c) {
			kinds += fmt.Sprint(m[18])
		}
		if kinds != "22222223" { // all UPDATEs but the last, and a NOTIFICATION in its place
			t.Errorf("ADD-PATH %v: the speaker reads %s", paths, kinds)
		}
		var levels []Level
		for _, ev := range e.events {
			if p, ok := ev.(Prefixes); ok {
				levels = append(levels, p.Level)
			}
		}
		if !slices.Equal(levels, []Level{Many, Normal, Many}) {
			t.Errorf("ADD-PATH %v: levels %v", paths, levels)
		}
		got := await(e, "the end", func(x Ended) bool { return x.Established })
		if got.Cause != CauseLimit || string(got.Sent.Data) != "\x00\x01\x01\x00\x00\x00\x64" {
			t.Errorf("ADD-PATH %v: %+v", paths, got)
		}
		_ = c.Close()
		if e.peer.enter(newConn(e.peer, e.peer.settings(), other, true)) {
			t.Error("the peer may connect although it is held down")
		}
		e.gate.Release(e.addr)
		if !e.peer.enter(newConn(e.peer, e.peer.settings(), other, true)) {
			t.Error("the peer may not connect although it was released")
		}
	}
}

// Of a burst of changed UPDATEs the first is reported at once, and the last one within a second or two.
func TestLastOfABurstIsReported(t *testing.T) {
	t.Parallel()
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
	other, c := e.establish()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	attrs := []byte{0x40, 1, 1, 7, 0x40, 2, 0, 0x40, 3, 4, 10, 0, 0, 2} // ORIGIN 7
	for i := range 20 {
		_, _ = other.Write(rawUpdate(nil, attrs, []byte{24, 10, 0, byte(i)}))
	}
	last := await(e, "the last one", func(m Mended) bool { return m.Count == 20 })
	if last.First != netip.MustParsePrefix("10.0.19.0/24") {
		t.Errorf("%+v", last)
	}
	if n := count(e, func(Mended) bool { return true }); n > 4 {
		t.Errorf("%d events", n)
	}
	await(e, "the first one", func(m Mended) bool { return m.Count == 1 })
}

// KEEPALIVEs go out as often as the settings have them, also if the speaker, which knows the peer's hold time, sends
// fewer: at most a third of the hold time apart.
func TestKeepaliveTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ours, wanted uint16 // seconds
		theirs       time.Duration
		want         time.Duration
		tooRare      bool
	}{
		{240, 80, 240 * time.Second, 80 * time.Second, false}, {240, 10, 240 * time.Second, 10 * time.Second, false},
		{240, 10, 60 * time.Second, 10 * time.Second, true}, {240, 80, 60 * time.Second, 20 * time.Second, false},
		{240, 300, 300 * time.Second, 80 * time.Second, false}, {240, 0, 90 * time.Second, 30 * time.Second, false},
		{240, 10, 0, 0, false},
	} {
		o := Open{Hold: c.theirs}
		if _, got, tooRare := o.timers(Peer{Hold: c.ours, Keepalive: c.wanted}); got != c.want || tooRare != c.tooRare {
			t.Errorf("%+v: %s, %v", c, got, tooRare)
		}
	}
	e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true, Keepalive: 1})
	e.gate.Ready(e.addr, true)
	open := mustOpen(t, 64512, "10.0.0.2")
	copy(open[22:], []byte{0, 90}) // the hold time
	other := e.rawPeer(open)
	_, _ = other.Write(message.Keepalive())
	c := e.session()
	_ = other.SetReadDeadline(time.Now().Add(20 * time.Second)) // the hold time would be 90 s
	for range 3 {
		if m, err := readMessage(other); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
			t.Fatalf("no KEEPALIVE: %x, %v", m, err)
		}
	}
	if up := await(e, "the session", func(Up) bool { return true }); up.Keepalive != time.Second {
		t.Errorf("shown are %s", up.Keepalive)
	}
	_ = c.Close()
	if n, err := io.Copy(io.Discard, other); err != nil {
		t.Errorf("after %d bytes more: %v", n, err)
	}
}
