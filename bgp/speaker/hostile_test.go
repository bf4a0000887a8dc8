package speaker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgpinside"
)

// A connection that is handed over late is not the session of a peer that has a password by then.
func TestLateHandOver(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{RestartDeferral: time.Second})
	const peer = "127.0.3.215"
	d.Sessions = append(d.Sessions, passive(peer))
	mustSet(t, s, d)
	tap := s.taps.of(ip(peer))
	// until GoBGP is ready for a connection, of which nothing is to be seen
	time.Sleep(2 * time.Second)
	tap.received.mu.Lock() // as a listing of many refused routes does
	c := dialFrom(t, peer, listenOf(d))
	put(c, fakeOptions{as: 64512, id: "10.99.3.215"}.open(), gobgp.NewBGPKeepAliveMessage())
	go func() { _, _ = io.Copy(io.Discard, c) }()
	// until the connection waits for the lock, of which nothing is to be seen
	time.Sleep(500 * time.Millisecond)
	protected := slices.Clone(d.Sessions)
	protected[0].Password = "secret"
	d.Sessions = nil
	mustSet(t, s, d)
	d.Sessions = protected
	mustSet(t, s, d)
	tap.received.mu.Unlock()
	for deadline := time.Now().Add(2500 * time.Millisecond); time.Now().Before(deadline); {
		if st, _ := s.Session(ip(peer)); established(st) {
			t.Fatal("the session is up on a connection without its password")
		}
		time.Sleep(50 * time.Millisecond) // nothing must happen in this time
	}
	if st, _ := s.Session(ip(peer)); st.Flaps > 0 {
		t.Errorf("the session was up: %+v", st)
	}
}

// The lines in the log are bounded, wherever a peer connects.
func TestPeerThatConnectsToOtherAddresses(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zapcore.InfoLevel)
	s, d := testSpeaker(t, Config{Logger: zap.New(core)})
	d.Global.ListenAddresses = []netip.Addr{netip.IPv4Unspecified()}
	session := passive("127.0.3.210")
	session.Source = ip("127.0.0.1")
	d.Sessions = append(d.Sessions, session)
	mustSet(t, s, d)
	before := logs.Len()
	for i := range 300 {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.3.210")}}
		c, err := dialer.Dial("tcp4", fmt.Sprintf("127.0.0.%d:%d", 2+i%6, d.Global.ListenPort))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(c)
		c.Close()
	}
	if n := logs.Len() - before; n == 0 || n > 60 {
		t.Errorf("300 connections made %d lines", n)
	}
}

// A peer that comes and goes without End-of-RIB does not prolong the restart of this node without end.
func TestRestartEndsWithAFlappingPeer(t *testing.T) {
	c := Config{}.withDefaults()
	done := ""
	r := newRestartSync(c, func(reason string) { done = reason }, func() {})
	r.begin([]bgp.Session{passive("127.0.0.2")})
	end := r.started.Add(c.RestartWindow + c.RestartDeferral)
	for now := r.started; now.Before(end); now = now.Add(c.RestartDeferral / 2) {
		r.established(ip("127.0.0.2"), false, now)
		if r.tick(now); done != "" {
			t.Fatalf("over after %s", now.Sub(r.started))
		}
	}
	r.established(ip("127.0.0.2"), false, end)
	if r.tick(end); done == "" {
		t.Error("the restart goes on")
	}
}

// A user of the host who binds all ports above 1023 keeps neither GoBGP nor IPv6 from starting.
func TestPortsOfOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	srv := server.NewBgpServer()
	go srv.Serve()
	defer srv.Stop()
	g := &api.Global{Asn: 64512, RouterId: "10.0.0.1"}
	if _, err := gobgpinside.Start(context.Background(), srv, g); err != nil || g.ListenPort >= 1024 {
		t.Errorf("GoBGP's own listener has port %d, %v", g.ListenPort, err)
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	for _, args := range [][]string{{"ip", "link", "set", "lo", "up"},
		{"sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40001"}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	for _, port := range []string{"40000", "40001"} {
		l, err := net.Listen("tcp6", "[::]:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	if list := listenAddresses(bgp.Global{ListenPort: 179}); len(list) != 2 {
		t.Errorf("listens on %v", list)
	}
}
