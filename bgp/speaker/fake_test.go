package speaker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/integration/ports"
)

// fakePeer is a scripted BGP speaker. It keeps its session alive and records the messages it receives.
type fakePeer struct {
	t    testing.TB
	conn net.Conn

	mu       sync.Mutex
	changed  *sync.Cond
	open     *gobgp.BGPOpen // of the other side
	messages []*gobgp.BGPMessage
	routes   map[netip.Prefix]*gobgp.BGPUpdate // announced and not withdrawn
	eor      bool
	silent   bool // it sends no KEEPALIVE any more
	closed   error
}

type fakeOptions struct {
	as        uint32
	id        string
	hold      uint16
	graceful  bool
	addPath   bool
	extended  bool // messages longer than 4,096 bytes (RFC 8654)
	twoOctets bool // of AS numbers, the only ones that the peer knows
	family    gobgp.Family
	caps      []gobgp.ParameterCapabilityInterface // instead of the above
}

func (o fakeOptions) open() *gobgp.BGPMessage {
	if o.family == 0 {
		o.family = gobgp.RF_IPv4_UC
	}
	caps := []gobgp.ParameterCapabilityInterface{
		gobgp.NewCapMultiProtocol(o.family), gobgp.NewCapRouteRefresh(),
	}
	if !o.twoOctets {
		caps = append(caps, gobgp.NewCapFourOctetASNumber(o.as))
	}
	if o.extended {
		caps = append(caps, gobgp.NewCapExtendedMessage())
	}
	if o.graceful {
		caps = append(caps, gobgp.NewCapGracefulRestart(false, false, 120, []*gobgp.CapGracefulRestartTuple{
			gobgp.NewCapGracefulRestartTuple(o.family, false)}))
	}
	if o.addPath {
		caps = append(caps, gobgp.NewCapAddPath([]*gobgp.CapAddPathTuple{
			gobgp.NewCapAddPathTuple(o.family, gobgp.BGP_ADD_PATH_BOTH)}))
	}
	if o.caps != nil {
		caps = o.caps
	}
	if o.hold == 0 {
		o.hold = 240
	}
	as := uint16(gobgp.AS_TRANS)
	if o.as < 1<<16 {
		as = uint16(o.as)
	}
	m, err := gobgp.NewBGPOpenMessage(as, o.hold, netip.MustParseAddr(o.id), []gobgp.OptionParameterInterface{
		gobgp.NewOptionParameterCapability(caps)})
	if err != nil {
		panic(err)
	}
	return m
}

// dialFake connects from local to the speaker and brings a session up to Established.
func dialFake(t testing.TB, local, speaker string, o fakeOptions) *fakePeer {
	t.Helper()
	p := &fakePeer{t: t, conn: dialFrom(t, local, speaker)}
	p.changed = sync.NewCond(&p.mu)
	p.start(o)
	return p
}

// dialFrom connects from one loopback address; it tries again while the speaker refuses (it idles 5 s after a loss).
func dialFrom(t testing.TB, local, speaker string) net.Conn {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}, Timeout: 3 * time.Second}
		conn, err := d.Dial("tcp", speaker)
		if err == nil {
			// A speaker that takes no connection of the peer now answers with a NOTIFICATION.
			first := make([]byte, gobgp.BGP_HEADER_LENGTH)
			conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, err = io.ReadFull(conn, first); err == nil && first[18] == gobgp.BGP_MSG_OPEN {
				conn.SetReadDeadline(time.Time{})
				t.Cleanup(func() { conn.Close() }) // also keeps the collector from closing it
				return &prefixedConn{Conn: conn, first: first}
			}
			conn.Close()
		}
		if time.Now().After(deadline) {
			t.Fatalf("peer %s cannot connect to the speaker at %s: %v", local, speaker, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

type prefixedConn struct {
	net.Conn
	first []byte
}

func (c *prefixedConn) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

func (p *fakePeer) start(o fakeOptions) {
	p.t.Helper()
	p.routes = map[netip.Prefix]*gobgp.BGPUpdate{}
	p.t.Cleanup(func() { p.conn.Close() })
	p.send(o.open())
	go p.receive(o)
	p.await("the OPEN of the speaker", func() bool { return p.open != nil })
	p.send(gobgp.NewBGPKeepAliveMessage())
	p.await("the KEEPALIVE of the speaker", func() bool { return p.count(gobgp.BGP_MSG_KEEPALIVE) > 0 })
}

func (p *fakePeer) send(m *gobgp.BGPMessage) {
	p.t.Helper()
	b, err := m.Serialize()
	if err != nil {
		p.t.Fatalf("serialize: %v", err)
	}
	p.write(b)
}

func (p *fakePeer) write(b []byte) {
	p.conn.SetWriteDeadline(time.Now().Add(20 * time.Second))
	_, _ = p.conn.Write(b) // a closed connection is seen by the reader
}

func (p *fakePeer) receive(o fakeOptions) {
	keepalive := time.AfterFunc(time.Hour, func() {})
	defer keepalive.Stop()
	for {
		m, err := readMessage(p.conn)
		p.mu.Lock()
		if err != nil {
			p.closed = err
			p.changed.Broadcast()
			p.mu.Unlock()
			return
		}
		p.messages = append(p.messages, m)
		switch body := m.Body.(type) {
		case *gobgp.BGPOpen:
			p.open = body
		case *gobgp.BGPUpdate:
			p.recordUpdate(body)
		case *gobgp.BGPKeepAlive:
			if o.hold != 0 && o.hold < 30 && !p.silent { // short hold times: answer each KEEPALIVE with one
				b, _ := gobgp.NewBGPKeepAliveMessage().Serialize()
				_, _ = p.conn.Write(b)
			}
		}
		p.changed.Broadcast()
		p.mu.Unlock()
	}
}

func (p *fakePeer) recordUpdate(u *gobgp.BGPUpdate) {
	if eor, _ := u.IsEndOfRib(); eor {
		p.eor = true
		return
	}
	for _, n := range u.NLRI {
		p.routes[n.NLRI.(*gobgp.IPAddrPrefix).Prefix] = u
	}
	for _, n := range u.WithdrawnRoutes {
		delete(p.routes, n.NLRI.(*gobgp.IPAddrPrefix).Prefix)
	}
	for _, a := range u.PathAttributes {
		switch a := a.(type) {
		case *gobgp.PathAttributeMpReachNLRI:
			for _, n := range a.Value {
				p.routes[n.NLRI.(*gobgp.IPAddrPrefix).Prefix] = u
			}
		case *gobgp.PathAttributeMpUnreachNLRI:
			for _, n := range a.Value {
				delete(p.routes, n.NLRI.(*gobgp.IPAddrPrefix).Prefix)
			}
		}
	}
}

// await waits until cond, which is called with the peer locked, is true.
func (p *fakePeer) await(what string, cond func() bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	timer := time.AfterFunc(30*time.Second, func() { p.changed.Broadcast() })
	defer timer.Stop()
	start := time.Now()
	for !cond() {
		if p.closed != nil {
			p.t.Fatalf("connection closed (%v) while waiting for %s; last messages: %s", p.closed, what, p.last())
		}
		if time.Since(start) > 30*time.Second {
			p.t.Fatalf("timeout while waiting for %s", what)
		}
		p.changed.Wait()
	}
}

// awaitRoute waits for a route, and returns the UPDATE that it came with.
func (p *fakePeer) awaitRoute(prefix netip.Prefix) (u *gobgp.BGPUpdate) {
	p.t.Helper()
	p.await("a route to "+prefix.String(), func() bool {
		u = p.routes[prefix]
		return u != nil
	})
	return u
}

// awaitClosed waits until the speaker ends the connection and returns its NOTIFICATION, if there was one.
func (p *fakePeer) awaitClosed() *gobgp.BGPNotification {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	timer := time.AfterFunc(30*time.Second, func() { p.changed.Broadcast() })
	defer timer.Stop()
	start := time.Now()
	for p.closed == nil {
		if time.Since(start) > 30*time.Second {
			p.t.Fatal("the speaker did not close the connection")
		}
		p.changed.Wait()
	}
	for _, m := range p.messages {
		if n, ok := m.Body.(*gobgp.BGPNotification); ok {
			return n
		}
	}
	return nil
}

func (p *fakePeer) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed != nil
}

// received is count for callers that have not locked the peer.
func (p *fakePeer) received(kind uint8) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count(kind)
}

func (p *fakePeer) count(kind uint8) (n int) {
	for _, m := range p.messages {
		if m.Header.Type == kind {
			n++
		}
	}
	return n
}

func (p *fakePeer) last() (s string) {
	for _, m := range p.messages[max(0, len(p.messages)-3):] {
		s += fmt.Sprintf("%d %+v; ", m.Header.Type, m.Body)
	}
	return s
}

// readMessage reads one message without the options of a session: enough for sessions without ADD-PATH.
func readMessage(c io.Reader) (*gobgp.BGPMessage, error) {
	h := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(c, h); err != nil {
		return nil, err
	}
	body := make([]byte, int(binary.BigEndian.Uint16(h[16:18]))-len(h))
	if _, err := io.ReadFull(c, body); err != nil {
		return nil, err
	}
	return gobgp.ParseBGPMessage(append(h, body...))
}

// update builds an UPDATE that announces IPv4 prefixes.
func update(nextHop string, as uint32, localPref uint32, prefixes ...netip.Prefix) *gobgp.BGPMessage {
	nh, err := gobgp.NewPathAttributeNextHop(netip.MustParseAddr(nextHop))
	if err != nil {
		panic(err)
	}
	var path []gobgp.AsPathParamInterface
	if as != 0 {
		path = []gobgp.AsPathParamInterface{gobgp.NewAs4PathParam(gobgp.BGP_ASPATH_ATTR_TYPE_SEQ, []uint32{as})}
	}
	attrs := []gobgp.PathAttributeInterface{gobgp.NewPathAttributeOrigin(0), gobgp.NewPathAttributeAsPath(path), nh}
	if localPref != 0 {
		attrs = append(attrs, gobgp.NewPathAttributeLocalPref(localPref))
	}
	return gobgp.NewBGPUpdateMessage(nil, attrs, nlris(prefixes))
}

func withdrawal(prefixes ...netip.Prefix) *gobgp.BGPMessage {
	return gobgp.NewBGPUpdateMessage(nlris(prefixes), nil, nil)
}

func nlris(prefixes []netip.Prefix) (list []gobgp.PathNLRI) {
	for _, p := range prefixes {
		n, err := gobgp.NewIPAddrPrefix(p)
		if err != nil {
			panic(err)
		}
		list = append(list, gobgp.PathNLRI{NLRI: n})
	}
	return list
}

// manyPrefixes returns n different /24s (and longer ones when n is large).
func manyPrefixes(n int) []netip.Prefix {
	list := make([]netip.Prefix, 0, n)
	for i := range n {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(20 + i>>18), byte(i >> 10), byte(i >> 2),
			byte(i << 6)}), 26))
	}
	return list
}

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func ip(s string) netip.Addr    { return netip.MustParseAddr(s) }

// testSpeaker returns a speaker that is stopped at the end of the test, and a Desired for 127.0.0.1 without sessions.
func testSpeaker(t testing.TB, cfg Config) (*Speaker, bgp.Desired) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	}
	s := New(cfg)
	t.Cleanup(func() { stopSpeaker(s) })
	return s, bgp.Desired{Global: bgp.Global{LocalAS: 64512, RouterID: ip("10.99.0.1"), ListenPort: ports.Free(t,
		"127.0.0.1"),
		ListenAddresses: []netip.Addr{ip("127.0.0.1")}}}
}

// stopSpeaker stops the speaker like the end of the process.
func stopSpeaker(s *Speaker) {
	s.Close()
	s.setMu.Lock()
	defer s.setMu.Unlock()
	if s.run != nil {
		s.run.stop(context.Background())
		s.setRun(nil)
	}
}

func listenOf(d bgp.Desired) string {
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(d.Global.ListenPort))
}

// passive is an iBGP session that waits for a peer.
func passive(addr string) bgp.Session {
	return bgp.Session{Address: ip(addr), Type: bgp.SessionMesh, LocalAS: 64512, PeerAS: 64512, Source: ip("127.0.0.1"),
		Passive: true}
}

func mustSet(t testing.TB, s *Speaker, d bgp.Desired) {
	t.Helper()
	err := s.Set(context.Background(), d)
	// When a speaker starts again, another process may have its port for a moment: other tests start programs, and
	// between fork and exec these have a copy of the closed listener.
	for end := time.Now().Add(10 * time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
		err = s.Set(context.Background(), d)
	}
	if err != nil {
		t.Fatalf("Set: %v", err)
	}
}

// awaitSession waits until the status of one session meets a condition.
func awaitSession(t testing.TB, s *Speaker, addr string, what string, cond func(SessionStatus) bool) SessionStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var last SessionStatus
	for ev := range s.WatchSessions(ctx) {
		if ev.Status.Session.Address != ip(addr) {
			continue
		}
		if last = ev.Status; !ev.Removed && cond(last) {
			return last
		}
	}
	t.Fatalf("session %s: timeout while waiting for %s; last: %s, %s, %q, warning %q", addr, what, last.State,
		last.Phase, last.Reason, last.Warning)
	return last
}

func established(st SessionStatus) bool { return st.Phase == PhaseEstablished }

// routeTable applies the results of Take.
type routeTable map[netip.Prefix]locrib.Route

// awaitRoutes updates a table until it meets a condition.
func awaitRoutes(t testing.TB, s *Speaker, table routeTable, what string, cond func() bool) {
	t.Helper()
	awaitRoutesFor(t, s, table, 60*time.Second, what, cond)
}

func awaitRoutesFor(t testing.TB, s *Speaker, table routeTable, most time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(most)
	for {
		for _, r := range s.Take(0) {
			if len(r.Paths) == 0 {
				delete(table, r.Prefix)
			} else {
				table[r.Prefix] = r
			}
		}
		if cond() {
			return
		}
		select {
		case <-s.Changed():
		case <-deadline:
			t.Fatalf("timeout while waiting for %s; have %d routes: %v", what, len(table), firstRoutes(table))
		}
	}
}

func firstRoutes(table routeTable) (list []locrib.Route) {
	for _, r := range table {
		if len(list) < 5 {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b locrib.Route) int { return a.Prefix.Compare(b.Prefix) })
	return list
}
