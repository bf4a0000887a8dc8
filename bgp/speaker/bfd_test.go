package speaker

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
)

// A path is down after half a second, not sooner: many processes share the processors of this machine.
const birdBFD = `protocol bfd watch {
	interface "*" { min rx interval 50 ms; min tx interval 50 ms; multiplier 10; };
	multihop { min rx interval 50 ms; min tx interval 50 ms; multiplier 10; };
}
`

// TestBFDEndsSessions cuts the path to a BIRD with BFD, single hop and multihop. A restart of BIRD is no cut.
// A path that BFD cannot watch, such as one to a peer without BFD, is a warning of its session.
func TestBFDThatNeverComesUp(t *testing.T) {
	t.Parallel()
	s, d := testSpeaker(t, Config{})
	address := uniqueLoopback(t)
	sess := passive(address)
	sess.BFD = bgp.BFD{Enabled: true, Transmit: time.Second, Receive: time.Second, Multiplier: 3, Multihop: true}
	d.Sessions = []bgp.Session{sess}
	mustSet(t, s, d)
	dialFake(t, address, listenOf(d), fakeOptions{as: 64512, id: "10.99.6.1"})
	st := awaitSession(t, s, address, "the warning", func(st SessionStatus) bool { return st.Warning != "" })
	if !strings.HasPrefix(st.Warning, "BFD (multihop, UDP 4784) has not come up since the session has: ") {
		t.Errorf("warning %q", st.Warning)
	}
	d.Sessions[0].BFD = bgp.BFD{}
	mustSet(t, s, d)
	awaitSession(t, s, address, "no warning", func(st SessionStatus) bool {
		return established(st) && st.Warning == ""
	})
}

func TestBFDEndsSessions(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.1/24", "10.77.0.10/24"}, []string{"10.77.0.2/24", "10.77.0.3/24"})
	config := birdHead + birdBFD +
		birdSession("many", "10.77.0.2", 64512, "10.77.0.1", "ipv4", "bfd on;") +
		strings.Replace(birdSession("single", "10.77.0.3", 64600, "10.77.0.10", "ipv4", "bfd on;"), "multihop;",
			"direct;", 1)
	n.start(config)
	d := birdDesired()
	watched := bgp.BFD{Enabled: true, Transmit: 50 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 10}
	single, many := birdPeer("10.77.0.3", "10.77.0.10", 64600), birdPeer("10.77.0.2", "10.77.0.1", 64512)
	single.BFD, many.BFD = watched, watched
	many.BFD.Multihop = true
	d.Sessions = []bgp.Session{many, single}
	c := startChild(t, n.manx)
	c.set(d)
	bothUp := func() bool {
		for _, s := range d.Sessions {
			st := c.sessions[s.Address]
			if st.Phase != PhaseEstablished || st.BFD == nil || st.BFD.State != bfd.Up {
				return false
			}
		}
		return true
	}
	learned := func() bool { return len(c.routes[pfx("10.244.2.0/26")].Paths) > 0 }
	c.await("sessions and BFD up", bothUp)
	c.await("routes", learned)
	n.await("show bfd sessions", "10.77.0.1 ", "10.77.0.10 ", "Up")

	n.ip("-n", n.bird, "link", "set", "eth0", "down")
	c.await("the end of both sessions", func() bool {
		for _, s := range d.Sessions {
			if st := c.sessions[s.Address]; st.Phase == PhaseEstablished ||
				!strings.Contains(st.LastError, "BFD: the path") {
				return false
			}
		}
		return !learned()
	})
	n.ip("-n", n.bird, "link", "set", "eth0", "up")
	c.await("sessions and BFD up again", bothUp)
	c.await("routes again", learned)

	time.Sleep(time.Second) // nothing may end the sessions again and again
	c.mu.Lock()
	for _, s := range d.Sessions {
		if st := c.sessions[s.Address]; st.Flaps != 1 {
			t.Errorf("%s: %d flaps, want the one of the cut; last error %q", s.Address, st.Flaps, st.LastError)
		}
	}
	removed := len(c.removed)
	c.mu.Unlock()

	if err := n.cmd.Process.Signal(syscall.SIGKILL); err != nil { // a restart, not a cut
		t.Fatal(err)
	}
	_ = n.cmd.Wait()
	c.await("the loss of the connection", func() bool { return c.sessions[many.Address].Phase != PhaseEstablished })
	time.Sleep(time.Second) // BIRD is away for a while, in which the routes must stay
	n.start("", "-R")
	c.await("sessions and BFD up after the restart of BIRD", bothUp)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.removed) != removed {
		t.Errorf("routes went away while BIRD restarted: %v", c.removed[removed:])
	}
}
