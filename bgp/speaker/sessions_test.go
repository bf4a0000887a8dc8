package speaker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/bgp"
)

// establishFifty brings up many sessions.
func establishFifty(t *testing.T, s *Speaker, d *bgp.Desired) map[string]*fakePeer {
	t.Helper()
	for i := range 50 {
		d.Sessions = append(d.Sessions, passive(fmt.Sprintf("127.0.2.%d", i+1)))
	}
	mustSet(t, s, *d)
	peers := map[string]*fakePeer{}
	for i, sess := range d.Sessions {
		a := sess.Address.String()
		peers[a] = dialFake(t, a, listenOf(*d), fakeOptions{as: 64512, id: fmt.Sprintf("10.99.2.%d", i+1)})
	}
	for a := range peers {
		awaitSession(t, s, a, "Established", established)
	}
	return peers
}

func TestUnchangedSessionsRunOn(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	peers := establishFifty(t, s, &d)
	first := d.Sessions[0].Address.String()

	check := func(what string, touched map[string]bool) {
		t.Helper()
		before := map[string]SessionStatus{}
		for a, p := range peers {
			if touched[a] {
				continue
			}
			before[a], _ = s.Session(ip(a))
			if p.isClosed() {
				t.Fatalf("%s: session with %s was closed", what, a)
			}
			p.send(update("10.0.0.2", 0, 100, pfx("10.244.1.0/26")))
		}
		for a, b := range before {
			deadline := time.Now().Add(time.Minute) // counters are read the more rarely the busier the machine is
			for {
				now, _ := s.Session(ip(a))
				if now.Flaps != 0 || now.Uptime < b.Uptime || !established(now) {
					t.Fatalf("%s: session with %s did not run on: before %+v, now %+v", what, a, b, now)
				}
				if now.Counters.UpdatesIn == b.Counters.UpdatesIn+1 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s: counters of %s stand still: %+v", what, a, now.Counters)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}

	mustSet(t, s, d)
	check("the same again", nil)

	d.Sessions[0].KeepaliveSeconds = 20
	mustSet(t, s, d)
	check("keepalive changed", nil)
	if st, _ := s.Session(ip(first)); st.Warning == "" {
		t.Error("no warning about the new timers, which wait for the next session")
	}
	d.Sessions[0].KeepaliveSeconds = 0
	mustSet(t, s, d)
	check("keepalive changed back", nil)
	if st, _ := s.Session(ip(first)); st.Warning != "" {
		t.Errorf("a change of timers that was taken back leaves the warning %q", st.Warning)
	}

	d.Sessions[0].KeepaliveSeconds, d.Sessions[0].AllowOwnAS = 20, 1
	mustSet(t, s, d)
	n := peers[first].awaitClosed()
	if n == nil || n.ErrorCode != 6 || n.ErrorSubcode != 6 {
		t.Errorf("changed session got %+v, want NOTIFICATION 6/6", n)
	}
	check("one changed", map[string]bool{first: true})
	peers[first] = dialFake(t, first, listenOf(d), fakeOptions{as: 64512, id: "10.99.2.1"})
	st := awaitSession(t, s, first, "Established again", established)
	if st.Flaps != 1 {
		t.Errorf("flaps %d of the changed session, want 1", st.Flaps)
	}

	gone := d.Sessions[49].Address.String()
	d.Sessions = d.Sessions[:49]
	mustSet(t, s, d)
	if n := peers[gone].awaitClosed(); n == nil || n.ErrorCode != 6 || n.ErrorSubcode != 3 {
		t.Errorf("removed session got %+v, want NOTIFICATION 6/3", n)
	}
	delete(peers, gone)
	if _, ok := s.Session(ip(gone)); ok {
		t.Error("the removed session still has a status")
	}

	d.Sessions = append(d.Sessions, passive("127.0.2.99"))
	mustSet(t, s, d)
	added := dialFake(t, "127.0.2.99", listenOf(d), fakeOptions{as: 64512, id: "10.99.2.99"})
	awaitSession(t, s, "127.0.2.99", "Established", established)
	check("one removed, one added", map[string]bool{first: true})
	if added.isClosed() {
		t.Error("the added session was closed")
	}
}

func TestTimersWaitForTheNextSession(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.3")}
	mustSet(t, s, d)
	o := fakeOptions{as: 64512, id: "10.99.0.3"}
	p := dialFake(t, "127.0.1.3", listenOf(d), o)
	awaitSession(t, s, "127.0.1.3", "Established", established)
	d.Sessions[0].HoldSeconds = 90
	mustSet(t, s, d)
	if p.isClosed() {
		t.Fatal("a change of the hold time ended the session")
	}
	p.conn.Close()
	awaitSession(t, s, "127.0.1.3", "the loss", func(st SessionStatus) bool {
		return st.Phase == PhaseFailed &&
			st.Warning == ""
	})
	p = dialFake(t, "127.0.1.3", listenOf(d), o)
	if p.open.HoldTime != 90 {
		t.Errorf("hold time %d in the OPEN of the next session, want 90", p.open.HoldTime)
	}
}

func TestReflectorChangeReplacesTheSession(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.4"), passive("127.0.1.5")}
	mustSet(t, s, d)
	client := dialFake(t, "127.0.1.4", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.4"})
	other := dialFake(t, "127.0.1.5", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.5"})
	awaitSession(t, s, "127.0.1.4", "Established", established)
	awaitSession(t, s, "127.0.1.5", "Established", established)
	d.ExportPrefixes = []netip.Prefix{pfx("10.244.0.0/16")}
	d.Sessions[0].ReflectorClient, d.Sessions[0].ReflectorClusterID = true, ip("10.99.0.1")
	mustSet(t, s, d)
	client.awaitClosed()
	client = dialFake(t, "127.0.1.4", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.4"})
	other.send(update("10.0.0.5", 0, 100, pfx("10.244.5.0/26")))
	for _, a := range client.awaitRoute(pfx("10.244.5.0/26")).PathAttributes {
		if nh, ok := a.(*gobgp.PathAttributeNextHop); ok && nh.Value != ip("10.0.0.5") {
			t.Errorf("reflected next hop %s, want it unchanged", nh.Value)
		}
	}
}

// md5 returns a dialer or listener option that signs segments to and from a peer (RFC 2385).
func md5(peer, password string) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		sig := &unix.TCPMD5Sig{Keylen: uint16(len(password))}
		sig.Addr.Family = unix.AF_INET
		a := netip.MustParseAddr(peer).As4()
		copy(sig.Addr.Data[2:6], a[:])
		copy(sig.Key[:], password)
		var err error
		if cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptTCPMD5Sig(int(fd), unix.IPPROTO_TCP, unix.TCP_MD5SIG, sig)
		}); cerr != nil {
			return cerr
		}
		return err
	}
}

func TestPasswordRemoved(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	sess := passive("127.0.1.6")
	sess.Password = "secret"
	d.Sessions = []bgp.Session{sess}
	mustSet(t, s, d)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.1.6")}, Timeout: 5 * time.Second,
		Control: md5("127.0.0.1", "secret")}
	conn, err := dialer.Dial("tcp", listenOf(d))
	if err != nil {
		t.Skipf("no TCP MD5 on this kernel: %v", err)
	}
	conn.Close()
	plain := net.Dialer{LocalAddr: dialer.LocalAddr, Timeout: 500 * time.Millisecond}
	if c, err := plain.Dial("tcp", listenOf(d)); err == nil {
		c.Close()
		t.Fatal("a connection without password was accepted")
	}
	// Removing the session and adding it without password must leave no key behind.
	d.Sessions = nil
	mustSet(t, s, d)
	sess.Password = ""
	d.Sessions = []bgp.Session{sess}
	mustSet(t, s, d)
	dialFake(t, "127.0.1.6", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.6"})
	awaitSession(t, s, "127.0.1.6", "Established", established)
	// The reverse: removing the password of a session that stays.
	d.Sessions[0].Password = "other"
	mustSet(t, s, d)
	d.Sessions[0].Password = ""
	mustSet(t, s, d)
	dialFake(t, "127.0.1.6", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.6"})
	awaitSession(t, s, "127.0.1.6", "Established again", established)
}

// mustNotConnect dials as the peer without a password, for a while: it must not get an OPEN.
func mustNotConnect(t *testing.T, from, to string) {
	t.Helper()
	plain := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 300 * time.Millisecond}
	for range 10 {
		c, err := plain.Dial("tcp", to)
		if err == nil {
			_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			answer := make([]byte, gobgp.BGP_HEADER_LENGTH)
			_, err := io.ReadFull(c, answer)
			c.Close()
			if err == nil && answer[18] == gobgp.BGP_MSG_OPEN {
				t.Fatalf("%s got an OPEN on a connection without a password", from)
			}
		}
		time.Sleep(100 * time.Millisecond) // attempts over time: the listener must never be open
	}
}

// A key that the kernel refuses leaves the listener open to every host with the peer's address.
func TestKeyThatTheKernelRefuses(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	sess := passive("127.0.1.60")
	sess.Password = strings.Repeat("x", 81) // TCP_MD5SIG_MAXKEYLEN is 80
	d.Sessions = []bgp.Session{sess}
	if err := s.Set(context.Background(), d); err == nil || !strings.Contains(err.Error(),
		"the kernel does not take the MD5 password") {
		t.Fatalf("Set: %v, want the kernel's error", err)
	}
	mustNotConnect(t, "127.0.1.60", listenOf(d))
	awaitSession(t, s, "127.0.1.60", "Refused", func(st SessionStatus) bool {
		return st.Phase == PhaseRefused && strings.Contains(st.Reason, "without its password the session stays down")
	})
	d.Sessions[0].Password = "short enough"
	mustSet(t, s, d)
	d.Sessions[0].Password = strings.Repeat("y", 81)
	if err := s.Set(context.Background(), d); err == nil {
		t.Fatal("a change to a key that the kernel refuses went unnoticed")
	}
	mustNotConnect(t, "127.0.1.60", listenOf(d))
}

// A session without its required password is not configured, and an established one goes down.
func TestMissingPasswordKeepsTheSessionDown(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.61")}
	mustSet(t, s, d)
	p := dialFake(t, "127.0.1.61", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.61"})
	awaitSession(t, s, "127.0.1.61", "Established", established)
	d.Sessions[0].PasswordFrom, d.Sessions[0].PasswordError = "missing",
		`key "k" of secret "s" cannot be read: it is gone`
	mustSet(t, s, d) // no attempt can help, so it is no error
	p.awaitClosed()
	mustNotConnect(t, "127.0.1.61", listenOf(d))
	awaitSession(t, s, "127.0.1.61", "Refused", func(st SessionStatus) bool {
		return st.Phase == PhaseRefused && strings.Contains(st.Reason,
			`key "k" of secret "s" cannot be read: it is gone`)
	})
}

func TestHardResetOnlyWhenEstablished(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	d.Sessions = []bgp.Session{passive("127.0.1.7")}
	mustSet(t, s, d)
	ctx := context.Background()
	if err := s.ResetSession(ctx, ip("127.0.1.7"), ResetHard); err == nil {
		t.Fatal("a session that is down was reset")
	}
	p := dialFake(t, "127.0.1.7", listenOf(d), fakeOptions{as: 64512, id: "10.99.0.7"})
	awaitSession(t, s, "127.0.1.7", "Established", established)
	if err := s.ResetSession(ctx, ip("127.0.1.7"), ResetHard); err != nil {
		t.Fatal(err)
	}
	if n := p.awaitClosed(); n == nil || n.ErrorCode != 6 || n.ErrorSubcode != 4 {
		t.Errorf("reset sent %+v, want NOTIFICATION 6/4", n)
	}
}

// TestGlobalChangeRestartsTheSpeaker: a new router ID needs a new server. The peers that restart gracefully see no
// NOTIFICATION, sessions come back, and no learned route is lost meanwhile.
func TestGlobalChangeRestartsTheSpeaker(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{RestartDeferral: time.Second})
	d.Sessions = []bgp.Session{passive("127.0.1.8")}
	d.Originated = []bgp.Origin{{Prefix: pfx("10.244.0.0/26"), LocalPref: 1000}}
	mustSet(t, s, d)
	o := fakeOptions{as: 64512, id: "10.99.0.8", graceful: true}
	p := dialFake(t, "127.0.1.8", listenOf(d), o)
	p.send(update("10.0.0.8", 0, 100, pfx("10.244.8.0/26"), pfx("10.244.9.0/26")))
	table := routeTable{}
	awaitRoutes(t, s, table, "two routes", func() bool { return len(table) == 2 })

	d.Global.RouterID = ip("10.99.0.77")
	mustSet(t, s, d)
	if n := p.awaitClosed(); n != nil {
		t.Errorf("restart sent NOTIFICATION %d/%d", n.ErrorCode, n.ErrorSubcode)
	}
	if synced, reason := s.Synced(); synced || reason == "" {
		t.Errorf("synced %v %q right after the restart", synced, reason)
	}
	p = dialFake(t, "127.0.1.8", listenOf(d), o)
	if p.open.ID != ip("10.99.0.77") {
		t.Errorf("router ID %s in the new OPEN", p.open.ID)
	}
	if r, f := gracefulBits(p.open); !r || !f {
		t.Errorf("restart bit %v, forwarding bit %v in the OPEN after the restart, want both", r, f)
	}
	if got := s.Take(0); len(got) != 0 {
		t.Errorf("the restart itself changed routes: %v", got)
	}
	p.send(update("10.0.0.8", 0, 100, pfx("10.244.8.0/26")))
	p.send(gobgp.NewEndOfRib(gobgp.RF_IPv4_UC))
	awaitRoutes(t, s, table, "the route that was not announced again to go", func() bool { return len(table) == 1 })
	if synced, reason := s.Synced(); !synced {
		t.Errorf("not synced after the End-of-RIB: %s", reason)
	}
	p.await("our route", func() bool { return p.routes[pfx("10.244.0.0/26")] != nil })
}

func gracefulBits(o *gobgp.BGPOpen) (restart, forwarding bool) {
	if gr := gracefulCapability(o); gr != nil {
		restart = gr.Flags&0x08 != 0
		for _, tuple := range gr.Tuples {
			forwarding = tuple.Flags&0x80 != 0
		}
	}
	return restart, forwarding
}

func gracefulCapability(o *gobgp.BGPOpen) *gobgp.CapGracefulRestart {
	for _, p := range o.OptParams {
		for _, c := range p.(*gobgp.OptionParameterCapability).Capability {
			if gr, ok := c.(*gobgp.CapGracefulRestart); ok {
				return gr
			}
		}
	}
	return nil
}
