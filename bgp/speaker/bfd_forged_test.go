package speaker

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/integration/namespace"
)

// States of BFD as in the second octet of a packet (RFC 5880 section 4.1).
const (
	forgedAdminDown = 0 << 6
	forgedDown      = 1 << 6
)

// forgeBFD sends BFD packets from BIRD's address, with an unknown session, 20 times a second until the returned
// function is called.
func (n *birdNet) forgeBFD(from, to string, state byte) (end func()) {
	n.t.Helper()
	var conn *net.UDPConn
	var err error
	nsErr := namespace.Inside(n.bird, func() {
		conn, err = net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)},
			&net.UDPAddr{IP: net.ParseIP(to), Port: 3784})
	})
	if nsErr == nil && err == nil {
		err = ipv4.NewConn(conn).SetTTL(255)
	}
	if nsErr != nil || err != nil {
		n.t.Fatal(nsErr, err)
	}
	packet := []byte{1 << 5, state, 3, 24, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0xf, 0x42, 0x40, 0, 0, 0xc3, 0x50, 0, 0, 0, 0}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer conn.Close()
		for tick := time.NewTicker(50 * time.Millisecond); ; {
			_, _ = conn.Write(packet)
			select {
			case <-stop:
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

// TestForgedBFD sends packets in BIRD's name: they end no session with a good path, and hide no broken path. A real
// restart of BIRD's BFD loses nothing.
func TestForgedBFD(t *testing.T) {
	t.Parallel()
	n := newBirdNet(t, []string{"10.77.0.10/24"}, []string{"10.77.0.3/24"})
	n.start(birdHead + birdBFD + strings.Replace(birdSession("single", "10.77.0.3", 64600, "10.77.0.10", "ipv4",
		"bfd graceful;"), "multihop;", "direct;", 1))
	s := birdPeer("10.77.0.3", "10.77.0.10", 64600)
	s.BFD = bgp.BFD{Enabled: true, Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 10}
	d := birdDesired()
	d.Sessions = []bgp.Session{s}
	c := startChild(t, n.manx)
	c.set(d)
	up := func() bool {
		st := c.sessions[s.Address]
		return st.Phase == PhaseEstablished && st.BFD != nil && st.BFD.State == bfd.Up
	}
	c.await("session and BFD up", up)
	same := func(what string) {
		t.Helper()
		c.mu.Lock()
		defer c.mu.Unlock()
		if st := c.sessions[s.Address]; st.Flaps != 0 || !up() {
			t.Errorf("%s: %d flaps, last error %q, BFD %+v", what, st.Flaps, st.LastError, st.BFD)
		}
	}
	for _, state := range []byte{forgedDown, forgedAdminDown} {
		end := n.forgeBFD("10.77.0.3", "10.77.0.10", state)
		time.Sleep(2 * time.Second) // nothing happens
		end()
		same("forged packets")
	}

	n.birdc("restart", "watch")
	n.await("show bfd sessions", "10.77.0.10 ", "Up")
	c.await("BFD up again", up)
	time.Sleep(newSessionTime + time.Second) // nothing ends the session afterwards
	same("BFD of BIRD restarted")

	for _, state := range []byte{forgedAdminDown, forgedDown} {
		c.await("session and BFD up", up)
		if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil { // like a cut path: the connection stays
			t.Fatal(err)
		}
		end := n.forgeBFD("10.77.0.3", "10.77.0.10", state)
		c.await("the end of the session", func() bool {
			st := c.sessions[s.Address]
			return st.Phase != PhaseEstablished && strings.Contains(st.LastError, "BFD: the path")
		})
		end()
		if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}
