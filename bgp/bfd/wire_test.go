package bfd

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/manxnet/manx/integration/namespace"
)

// inject sends a packet from the other host.
func (x *twoHosts) inject(from, to netip.Addr, port, ttl int, b []byte) {
	x.t.Helper()
	var err error
	nsErr := namespace.Inside(x.theirs, func() {
		conn, e := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
		if err = e; err != nil {
			return
		}
		defer conn.Close()
		if from.Is4() {
			err = ipv4.NewConn(conn).SetTTL(ttl)
		} else {
			err = ipv6.NewConn(conn).SetHopLimit(ttl)
		}
		if err == nil {
			_, err = conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, uint16(port)))
		}
	})
	if nsErr != nil || err != nil {
		x.t.Fatal(nsErr, err)
	}
}

// TestStrangePacketsAreIgnored sends packets that RFC 5880 section 6.8.6 and RFC 5881 section 5 discard, and then one
// valid packet: only this one must have an effect.
func TestStrangePacketsAreIgnored(t *testing.T) {
	x := newTwoHosts(t)
	stranger4, stranger6 := netip.MustParseAddr("10.77.0.3"), netip.MustParseAddr("fd77::3")
	x.ip("-n", x.theirs, "addr", "add", "10.77.0.3/24", "dev", "eth0")
	x.ip("-n", x.theirs, "addr", "add", "fd77::3/64", "dev", "eth0", "nodad")
	x.startEngine()
	x.set(path(their4, our4, fast), path(their6, our6, fast))
	hello := packet{state: Down, multiplier: 3, my: 7, desiredTx: time.Second, requiredRx: time.Second}
	stray, unknown := hello, hello
	stray.state, stray.your = Up, 0
	x.engine.mu.Lock()
	for unknown.your = 1; x.engine.byMine[unknown.your] != nil; {
		unknown.your++
	}
	x.engine.mu.Unlock()
	for _, c := range []struct{ ours, theirs, stranger netip.Addr }{{our4, their4, stranger4},
		{our6, their6, stranger6}} {
		x.inject(c.theirs, c.ours, portSingleHop, 254, hello.marshal())
		x.inject(c.theirs, c.ours, portSingleHop, 1, hello.marshal())
		x.inject(c.stranger, c.ours, portSingleHop, maxTTL, hello.marshal())
		x.inject(c.theirs, c.ours, portSingleHop, maxTTL, stray.marshal())
		x.inject(c.theirs, c.ours, portSingleHop, maxTTL, unknown.marshal())
		x.inject(c.theirs, c.ours, portSingleHop, maxTTL, []byte("what is this?"))
		x.inject(c.theirs, c.ours, portSingleHop, maxTTL, nil)
		x.inject(c.theirs, c.ours, portSingleHop, maxTTL, []byte(strings.Repeat("\xff", 2000)))
		x.inject(c.theirs, c.ours, portMultihop, maxTTL, hello.marshal())
		if s, _ := x.engine.Session(c.theirs); s.State != Down || s.Received != 0 {
			t.Errorf("%s: before the good packet: %s after %d packets, want Down after 0", c.theirs, s.State,
				s.Received)
		}
		x.inject(c.theirs, c.ours, portSingleHop, maxTTL, hello.marshal())
		x.awaitStatus("the good packet", c.theirs, func(s Status) bool { return s.Received > 0 })
		if s, _ := x.engine.Session(c.theirs); s.State != Init || s.Received != 1 {
			t.Errorf("%s: %s after %d packets, want Init after the one good packet", c.theirs, s.State, s.Received)
		}
	}
}

// TestMultihopTakesForwardedPackets: multihop sessions accept packets that routers have forwarded (RFC 5883).
func TestMultihopTakesForwardedPackets(t *testing.T) {
	x := newTwoHosts(t)
	x.startEngine()
	s := path(their4, our4, fast)
	s.Multihop = true
	x.set(s)
	hello := packet{state: Down, multiplier: 3, my: 7, desiredTx: time.Second, requiredRx: time.Second}
	x.inject(their4, our4, portSingleHop, maxTTL, hello.marshal())
	x.inject(their4, our4, portMultihop, 60, hello.marshal())
	x.awaitStatus("a forwarded packet", their4, func(s Status) bool { return s.State == Init })
}

// TestListenersComeAndGo removes the last session of a socket and adds it again at once, many times.
func TestListenersComeAndGo(t *testing.T) {
	x := newTwoHosts(t)
	x.startEngine()
	s := path(their4, our4, fast)
	for range 50 {
		s.Multihop = !s.Multihop
		x.set(s)
	}
	other := s
	other.Local = netip.Addr{}
	x.set(other)
	if st, _ := x.engine.Session(their4); st.Error != "" || st.Session != other {
		t.Errorf("session %+v, want it to run from any address", st)
	}
	hello := packet{state: Down, multiplier: 3, my: 7, desiredTx: time.Second, requiredRx: time.Second}
	port := portSingleHop
	if s.Multihop {
		port = portMultihop
	}
	x.inject(their4, our4, port, maxTTL, hello.marshal())
	x.awaitStatus("a packet", their4, func(s Status) bool { return s.State == Init })
}

const besideBIRD = "BFD_BESIDE_BIRD" // set in the process that runs where BIRD has the port

// TestPortTaken runs an engine on a host whose BIRD has the port: the status reports it, and the engine recovers when
// BIRD ends.
func TestPortTaken(t *testing.T) {
	if os.Getenv(besideBIRD) != "" {
		runBesideBIRD(t)
		return
	}
	x := newTwoHosts(t, "bird", "birdc")
	x.startBIRD("")
	cmd := namespace.Command(x.theirs, os.Args[0], "-test.run=^TestPortTaken$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), besideBIRD+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Log(lines.Text())
		if lines.Text() == "taken" {
			_ = x.bird.Process.Kill()
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

func runBesideBIRD(t *testing.T) {
	e := New(Config{})
	defer e.Close()
	const want = "UDP port 3784 is taken: another BFD daemon"
	if err := e.Set([]Session{path(our4, their4, fast)}); err == nil || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v, want %q", err, want)
	}
	if s, _ := e.Session(our4); !strings.Contains(s.Error, want) {
		t.Errorf("status %+v, want the error %q", s, want)
	}
	os.Stdout.WriteString("taken\n")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if s, _ := e.Session(our4); s.Error == "" && s.Sent > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the engine has not taken the port that is free")
		}
	}
}
