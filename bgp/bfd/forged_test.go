package bfd

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/integration/namespace"
)

// TestForgedEnd runs sessions with BIRD, single hop and multihop, and sends in BIRD's name that it is down.
func TestForgedEnd(t *testing.T) {
	x := newTwoHosts(t, "bird", "birdc")
	const timers = "interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; multiplier 10; };\nmultihop { " +
		"min rx interval 100 ms; min tx interval 100 ms; multiplier 10; };\n"
	x.ip("-n", x.theirs, "addr", "add", "10.77.0.3/24", "dev", "eth0")
	x.startBIRD(timers + "neighbor 10.77.0.1 dev \"eth0\" local 10.77.0.2;\nneighbor fd77::1;\nneighbor 10.77.0.1 " +
		"local 10.77.0.3 multihop;\n")
	x.startEngine()
	far := netip.MustParseAddr("10.77.0.3")
	four, six, multi := path(their4, our4, 100*ms), path(their6, our6, 100*ms), path(far, our4, 100*ms)
	multi.Multihop = true
	x.set(four, six, multi)
	for range 3 {
		x.await("sessions up", isUp)
	}
	for _, state := range []State{Down, AdminDown} {
		forged := stranger
		forged.state = state
		for range 5 {
			x.inject(their4, our4, portSingleHop, maxTTL, forged.marshal())
			x.inject(their6, our6, portSingleHop, maxTTL, forged.marshal())
			x.inject(far, our4, portMultihop, 64, forged.marshal())
		}
	}
	for _, remote := range []netip.Addr{their4, their6, far} {
		x.awaitStatus("forged packets", remote, func(s Status) bool { return s.Drops.Unconfirmed == 10 })
	}
	x.staysUp("after forged packets", 1500*time.Millisecond) // more than the detection time
}

// TestLeastTTL sets the least TTL above and below 64, the TTL of BIRD's multihop packets.
func TestLeastTTL(t *testing.T) {
	x := newTwoHosts(t, "bird", "birdc")
	x.startBIRD("multihop { min rx interval 100 ms; min tx interval 100 ms; multiplier 10; };\nneighbor 10.77.0.1 " +
		"local 10.77.0.2 multihop;\n")
	x.startEngine()
	s := path(their4, our4, 100*ms)
	s.Multihop, s.MinTTL = true, 65
	x.set(s)
	x.awaitStatus("packets that are dropped", their4, func(s Status) bool {
		return s.Drops.TTL > 2 && s.Drops.LastTTL == 64 && s.Received == 0 && s.State == Down
	})
	s.MinTTL = 64
	x.set(s)
	x.await("up with the right TTL", isUp)
	known, _ := x.engine.Session(their4)
	x.inject(their4, our4, portMultihop, 63, stranger.marshal())
	x.inject(their4, our4, portMultihop, 64, stranger.marshal())
	x.awaitStatus("the packet with the right TTL", their4,
		func(s Status) bool { return s.Drops.Unconfirmed == 1 && s.Drops.TTL == known.Drops.TTL+1 })
}

func TestGate(t *testing.T) {
	hello := stranger.marshal()
	named := stranger
	named.your = 7
	wrong := stranger
	wrong.your = 8
	s := Session{Receive: 50 * ms}
	for _, c := range []struct {
		name   string
		packet []byte
		port   uint16
		ttl    int
		drops  Drops
	}{
		{"a packet", hello, 49152, 255, Drops{}},
		{"a port of BIRD", named.marshal(), 32768, 255, Drops{}},
		{"a port of a service", hello, 53, 255, Drops{Port: 1}},
		{"forwarded", hello, 49152, 254, Drops{TTL: 1, LastTTL: 254}},
		{"of another session", wrong.marshal(), 49152, 255, Drops{Discriminator: 1}},
		{"too short", hello[:23], 49152, 255, Drops{Malformed: 1}},
		{"empty", nil, 49152, 255, Drops{Malformed: 1}},
	} {
		g := newGate(7, s)
		if ok := g.admits(c.packet, c.port, c.ttl, t0); ok != (c.drops == Drops{}) || g.drops() != c.drops {
			t.Errorf("%s: admitted: %t, drops %+v, want %+v", c.name, ok, g.drops(), c.drops)
		}
	}

	// Forgeable packets do not use up the remote's budget, and the remote's own packets have a limit.
	g := newGate(7, s)
	count := func(b []byte) (n int) {
		for range 10_000 {
			if g.admits(b, 49152, 255, t0) {
				n++
			}
		}
		return n
	}
	if n := count(hello); n != strangeBurst {
		t.Errorf("%d of 10,000 packets without discriminator are admitted at once, want %d", n, strangeBurst)
	}
	if n := count(named.marshal()); n != burst {
		t.Errorf("%d of 10,000 packets with it are admitted at once, want %d", n, burst)
	}
	for _, c := range []struct {
		every time.Duration
		want  float64
	}{{10 * ms, 400}, {50 * ms, 80}, {time.Second, leastRate}} {
		g.configure(Session{Receive: c.every})
		if got := float64(g.known.Limit()); got < c.want-1 || got > c.want+1 {
			t.Errorf("receive interval %s: %.0f packets a second, want %.0f", c.every, got, c.want)
		}
	}
}

func TestGateAllocatesNothing(t *testing.T) {
	e := &Engine{}
	from := netip.AddrPortFrom(their4, 40000)
	g := newGate(7, Session{Receive: 50 * ms})
	e.gates.put(their4, g)
	wrong := stranger
	wrong.your = 8
	b := wrong.marshal()
	unknown := netip.AddrPortFrom(our4, 40000)
	if n := testing.AllocsPerRun(1000, func() {
		e.arrived(b, from, 255, false)
		e.arrived(b, unknown, 255, false)
	}); n > 0 {
		t.Errorf("%.1f allocations for two packets that are dropped", n)
	}
}

// The flood: packets in a second and for how long.
const (
	floodRate = 20_000
	floodTime = 3 * time.Second
	flooder   = "BFD_FLOODER" // set in the process that sends it
)

// TestFlooder is the process that sends forged packets, in the name of a peer and of an unknown host.
func TestFlooder(t *testing.T) {
	if os.Getenv(flooder) == "" {
		t.Skip("runs as a part of TestFlood only")
	}
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
	wrong := stranger
	wrong.your, wrong.state = 12345, Up
	forged := [][]byte{stranger.marshal(), wrong.marshal(), []byte("rubbish of more than 24 octets, to be parsed")}
	var conns []*net.UDPConn
	for _, from := range []string{"10.77.0.2", "10.77.0.2", "10.77.0.66"} {
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)},
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(our4, portSingleHop)))
		if err != nil {
			t.Fatal(err)
		}
		if err := ipv4.NewConn(conn).SetTTL(maxTTL); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	start, sent := time.Now(), 0
	for time.Since(start) < floodTime {
		for due := int(time.Since(start).Seconds() * floodRate); sent < due; sent++ {
			_, _ = conns[sent%len(conns)].Write(forged[sent/len(conns)%len(forged)])
		}
		time.Sleep(time.Millisecond)
	}
	fmt.Println("sent", sent)
}

// TestFlood sends forged packets in the name of one of two peers: the sessions of both, 3 x 50 ms, stay up. The machine
// may have other load, so one run without a loss, of several, is enough.
func TestFlood(t *testing.T) {
	x := newTwoHosts(t)
	second := netip.MustParseAddr("10.77.0.3")
	x.ip("-n", x.theirs, "addr", "add", "10.77.0.3/24", "dev", "eth0")
	x.ip("-n", x.theirs, "addr", "add", "10.77.0.66/24", "dev", "eth0")
	theirs := New(Config{})
	t.Cleanup(theirs.Close)
	var err error
	ours := []Session{path(their4, our4, fast), path(second, our4, fast)}
	ours[1].Multihop = true
	mirror := []Session{path(our4, their4, fast)}
	if nsErr := namespace.Inside(x.theirs, func() { err = theirs.Set(mirror) }); nsErr != nil || err != nil {
		t.Fatal(nsErr, err)
	}
	other := New(Config{})
	t.Cleanup(other.Close)
	if nsErr := namespace.Inside(x.theirs, func() {
		s := path(our4, second, fast)
		s.Multihop = true
		err = other.Set([]Session{s})
	}); nsErr != nil || err != nil {
		t.Fatal(nsErr, err)
	}
	x.startEngine()
	x.set(ours...)
	for round := range 5 {
		for _, s := range ours {
			x.awaitStatus("up", s.Remote, func(s Status) bool { return s.State == Up && s.Detection == 3*fast })
		}
		for len(x.events) > 0 {
			<-x.events
		}
		before, _ := x.engine.Session(second)
		cmd := namespace.Command(x.theirs, os.Args[0], "-test.run=^TestFlooder$", "-test.v")
		cmd.Env = append(os.Environ(), flooder+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		downs := 0
		for len(x.events) > 0 {
			if e := <-x.events; isDown(e) {
				downs++
				t.Logf("round %d: %s: %s", round, e.Status.Session.Remote, e.Status.Reason)
			}
		}
		flooded, _ := x.engine.Session(their4)
		after, _ := x.engine.Session(second)
		d := flooded.Drops
		t.Logf("round %d: %s drops %+v; the other peer: %d packets, drops %+v", round, out, d,
			after.Received-before.Received, after.Drops)
		if d.Rate < 1000 || d.Discriminator < 1000 {
			t.Fatalf("the flood is not noticed: %+v", d)
		}
		if most := uint64(round+1) * (strangeBurst + strangeRate*2*uint64(floodTime.Seconds())); d.Unconfirmed > most {
			t.Errorf("%d forged packets reached the session, want at most %d", d.Unconfirmed, most)
		}
		if downs == 0 {
			return
		}
	}
	t.Error("a flood ends sessions")
}
