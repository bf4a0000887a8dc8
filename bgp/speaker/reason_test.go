package speaker

import (
	"cmp"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/session"
	"github.com/manxnet/manx/integration/ports"
)

// listenFake accepts connections on a loopback address and runs script for each until the test ends.
func listenFake(t *testing.T, addr string, script func(net.Conn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", addr+":0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			go script(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	})
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func put(c net.Conn, messages ...*gobgp.BGPMessage) {
	for _, m := range messages {
		b, err := m.Serialize()
		if err != nil {
			panic(err)
		}
		_, _ = c.Write(b)
	}
}

// active returns an iBGP session that we open.
func active(addr string, port uint16) bgp.Session {
	return bgp.Session{Address: ip(addr), Port: port, LocalAS: 64512, PeerAS: 64512, Source: ip("127.0.0.1")}
}

func TestReasons(t *testing.T) {
	badAS := make([]byte, 4)
	binary.BigEndian.PutUint32(badAS, 64513)
	goodOpen := fakeOptions{as: 64512, id: "10.99.3.1"}
	refused := []string{"OPEN refused by 127.0.3.", "it expects another AS, we are 64512 (received NOTIFICATION 2/2)"}
	silence := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	for _, c := range []struct {
		name   string
		script func(net.Conn) // none: nothing listens
		change func(*bgp.Session)
		want   []string
		by     session.Direction // local if empty
	}{
		{name: "nothing listens", want: []string{"connection refused by 127.0.3.", "nothing listens on port"}},
		{by: DirectionSent, name: "the peer has another AS", script: func(c net.Conn) {
			put(c, fakeOptions{as: 64513, id: "10.99.3.1"}.open())
			silence(c)
		},
			want: []string{"OPEN of 127.0.3.", "refused", "64512 as configured here", "sent NOTIFICATION 2/2"}},
		{by: DirectionSent, name: "same router ID", script: func(c net.Conn) {
			put(c, fakeOptions{as: 64512, id: "10.99.0.1"}.open())
			silence(c)
		},
			want: []string{"router ID", "same as ours", "2/3"}},
		{by: DirectionSent, name: "hold time of one second", script: func(c net.Conn) {
			put(c, fakeOptions{as: 64512, id: "10.99.3.1", hold: 1}.open())
			silence(c)
		},
			want: []string{"hold time is 1s; RFC 4271 wants 0 or at least 3 s", "sent NOTIFICATION 2/6"}},
		{by: DirectionReceived, name: "the peer refuses our AS before its OPEN", script: func(c net.Conn) {
			_, _ = readMessage(c)
			put(c, gobgp.NewBGPNotificationMessage(2, 2, badAS))
			silence(c)
		}, want: refused},
		{by: DirectionReceived, name: "the peer refuses our AS after its OPEN", script: func(c net.Conn) {
			put(c, goodOpen.open())
			_, _ = readMessage(c)
			put(c, gobgp.NewBGPNotificationMessage(2, 2, badAS))
			silence(c)
		}, want: refused},
		{by: DirectionSent, name: "garbage instead of an OPEN", script: func(c net.Conn) {
			_, _ = c.Write([]byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 4)))
			silence(c)
		},
			want: []string{"does not speak BGP", "no BGP marker"}},
		{name: "the peer closes at once", script: func(c net.Conn) { c.Close() },
			want: []string{"before it sent an OPEN", "no session for our address"}},
		{name: "the peer closes after the OPENs", script: func(c net.Conn) {
			put(c, goodOpen.open())
			_, _ = readMessage(c)
			c.Close()
		},
			want: []string{"closed the connection before the session was up", "64512"}},
		{by: DirectionSent, name: "the peer is silent", script: silence,
			want: []string{"is connected but has sent no OPEN within 2s"}},
		{by: DirectionSent, name: "the peer is silent after its OPEN", script: func(c net.Conn) {
			put(c, goodOpen.open())
			silence(c)
		},
			want: []string{"is connected but has sent no KEEPALIVE within 2s"}},
		{name: "source address of another host", script: silence, change: func(s *bgp.Session) {
			s.Source = ip("192.0.2.77")
		},
			want: []string{"source address 192.0.2.77", "not an address of this host"}},
		{name: "no AS", script: silence, change: func(s *bgp.Session) { s.PeerAS = 0 },
			want: []string{"AS of the peer is 0"}},
		{name: "source of another family", script: silence, change: func(s *bgp.Session) { s.Source = ip("::1") },
			want: []string{"another family"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			addr := uniqueLoopback(t)
			s, d := testSpeaker(t, Config{OpenTimeout: 2 * time.Second})
			port := ports.Free(t, "127.0.0.1")
			if c.script != nil {
				port = listenFake(t, addr, c.script)
			}
			sess := active(addr, port)
			if c.change != nil {
				c.change(&sess)
			}
			d.Sessions = []bgp.Session{sess}
			err := s.Set(t.Context(), d)
			st := awaitSession(t, s, addr, "a reason with "+strings.Join(c.want, ", "), func(st SessionStatus) bool {
				for _, w := range c.want {
					if !strings.Contains(st.Reason, w) {
						return false
					}
				}
				return true
			})
			if st.Phase == PhaseRefused != (err != nil) {
				t.Errorf("phase %s, but Set returned %v", st.Phase, err)
			}
			if st.Phase == PhaseRefused {
				if !st.NextAttempt.IsZero() {
					t.Errorf("next attempt at %s, although the session cannot be configured", st.NextAttempt)
				}
				return
			}
			if st.Phase != PhaseFailed {
				t.Errorf("phase %s, want Failed", st.Phase)
			}
			if want := cmp.Or(c.by, DirectionLocal); st.LastErrorBy != want || st.LastError != st.Reason ||
				st.LastErrorAt.IsZero() {
				t.Errorf("last error %q at %s, %s; want it %s", st.LastError, st.LastErrorAt, st.LastErrorBy, want)
			}
			awaitSession(t, s, addr, "the next attempt", func(st SessionStatus) bool {
				left := time.Until(st.NextAttempt)
				return left > 0 && left <= 4*time.Second
			})
		})
	}
}

var loopbacks struct {
	sync.Mutex
	n byte
}

func uniqueLoopback(t *testing.T) string {
	loopbacks.Lock()
	defer loopbacks.Unlock()
	loopbacks.n++
	return netip.AddrFrom4([4]byte{127, 0, 3, loopbacks.n}).String()
}

func TestWaitingForAPassivePeer(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.20")}
	mustSet(t, s, d)
	st := awaitSession(t, s, "127.0.1.20", "Waiting", func(st SessionStatus) bool { return st.Phase == PhaseWaiting })
	if !strings.Contains(st.Reason, "waiting for 127.0.1.20 to connect") {
		t.Errorf("reason %q", st.Reason)
	}
}

// TestSilentPeerIsReplaced: a peer that sends its OPEN and falls silent must not hold the session, whether it connected
// to us or we to it. The real peer gets through.
func TestSilentPeerIsReplaced(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{OpenTimeout: 2 * time.Second})
	d.Sessions = []bgp.Session{passive("127.0.1.21")}
	mustSet(t, s, d)
	conn := dialFrom(t, "127.0.1.21", listenOf(d))
	put(conn, fakeOptions{as: 64512, id: "10.99.0.21"}.open())
	awaitSession(t, s, "127.0.1.21", "OpenConfirm", func(st SessionStatus) bool { return st.State == "OpenConfirm" })
	awaitSession(t, s, "127.0.1.21", "the watchdog", func(st SessionStatus) bool {
		return strings.Contains(st.Reason, "has sent no KEEPALIVE within 2s")
	})
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Logf("silent connection ended: %v", err)
	}
	dialFake(t, "127.0.1.21", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.21"})
	awaitSession(t, s, "127.0.1.21", "Established", established)
}

// The reason names the time that has passed: the hold time, if the exchange may take longer.
func TestSilenceWithinTheHoldTime(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.22")}
	mustSet(t, s, d)
	put(dialFrom(t, "127.0.1.22", listenOf(d)), fakeOptions{as: 64512, id: "10.99.0.22", hold: 3}.open())
	awaitSession(t, s, "127.0.1.22", "the hold timer", func(st SessionStatus) bool {
		return strings.Contains(st.Reason, "is connected but has sent no KEEPALIVE within 3s")
	})
}

func TestLossReasons(t *testing.T) {
	for _, c := range []struct {
		name     string
		graceful bool
		end      func(*fakePeer)
		want     string
		by       session.Direction
	}{
		{"cease with text", false, func(p *fakePeer) {
			p.send(gobgp.NewBGPNotificationMessage(6, 2, append([]byte{11}, "maintenance"...)))
		}, `ended the session: administrative shutdown, saying "maintenance" (received NOTIFICATION 6/2)`,
			DirectionReceived},
		{"connection closed", false, func(p *fakePeer) { p.conn.Close() },
			"closed the connection, or the network between was cut", DirectionLocal},
		{"graceful restart", true, func(p *fakePeer) { p.conn.Close() }, "routes are kept for 120 s (graceful restart)",
			DirectionLocal},
		{"malformed message", false, func(p *fakePeer) { p.write(make([]byte, 19)) },
			"malformed: connection not synchronized", DirectionSent},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			addr := uniqueLoopback(t)
			s, d := testSpeaker(t, Config{})
			d.Sessions = []bgp.Session{passive(addr)}
			mustSet(t, s, d)
			p := dialFake(t, addr, listenOf(d), fakeOptions{as: 64512, id: "10.99.0.30", graceful: c.graceful})
			awaitSession(t, s, addr, "Established", established)
			c.end(p)
			st := awaitSession(t, s, addr, c.want, func(st SessionStatus) bool {
				return strings.Contains(st.Reason, c.want)
			})
			if st.LastErrorBy != c.by || (st.Restarts == 1) != c.graceful {
				t.Errorf("reported by %q, want %q; %d graceful restarts", st.LastErrorBy, c.by, st.Restarts)
			}
			if st.Flaps != 1 || st.LastError != st.Reason || st.LastErrorAt.IsZero() {
				t.Errorf("flaps %d, last error %q at %s", st.Flaps, st.LastError, st.LastErrorAt)
			}
		})
	}
}

func TestHoldTimerReason(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.22")}
	mustSet(t, s, d)
	conn := dialFrom(t, "127.0.1.22", listenOf(d))
	put(conn, fakeOptions{as: 64512, id: "10.99.0.22", hold: 3}.open(), gobgp.NewBGPKeepAliveMessage())
	awaitSession(t, s, "127.0.1.22", "the expiry", func(st SessionStatus) bool {
		return strings.Contains(st.Reason, "hold timer expired: nothing was heard from 127.0.1.22")
	})
}

// TestWrongPassword: the kernel drops packets that are not signed with our key, so that we receive nothing.
func TestWrongPassword(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{ConnectRetry: 2 * time.Second})
	lc := net.ListenConfig{Control: md5("127.0.0.1", "theirs")}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(t.Context(), "tcp", "127.0.1.23:0")
	if err != nil {
		t.Skipf("no TCP MD5 on this kernel: %v", err)
	}
	defer l.Close()
	sess := active("127.0.1.23", uint16(l.Addr().(*net.TCPAddr).Port))
	sess.Password = "ours"
	d.Sessions = []bgp.Session{sess}
	mustSet(t, s, d)
	st := awaitSession(t, s, "127.0.1.23", "the reason", func(st SessionStatus) bool {
		return strings.Contains(st.Reason, "wrong MD5 password")
	})
	if st.Session.Password != "" {
		t.Error("the status holds the password")
	}
}
