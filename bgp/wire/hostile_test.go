package wire

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

// The connection of a peer that was removed ends, also if the speaker has not taken it yet: it must not become the
// session of the same peer with other settings, such as a password.
func TestConnectionOfARemovedPeer(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		e := newEnd(t, "10.0.0.1", "10.0.9.2", Peer{Passive: true})
		handed := make(chan *conn, 1)
		if !taken {
			e.gate.cfg.HandOver = func(_ context.Context, c net.Conn) { handed <- c.(*conn) }
		}
		e.gate.Ready(e.addr, true)
		other := e.rawPeer(mustOpen(t, e.peer.settings().PeerAS, "10.0.0.2"))
		if m, err := readMessage(other); err != nil || m[18] != bgp.BGP_MSG_KEEPALIVE {
			t.Fatalf("no KEEPALIVE: %x, %v", m, err)
		}
		_, _ = other.Write(message.Keepalive())
		var c *conn
		if taken {
			c = e.session()
		} else {
			c = <-handed
		}
		e.gate.Remove(e.addr)
		if m, err := readMessage(c); err != nil || m[18] != bgp.BGP_MSG_NOTIFICATION {
			t.Errorf("taken %v: the speaker reads %x, %v", taken, m, err)
		}
		_ = c.Close()
		m, err := readMessage(other)
		if err != nil || m[18] != bgp.BGP_MSG_NOTIFICATION || m[20] != message.SubDeconfigured {
			t.Errorf("taken %v: the peer reads %x, %v", taken, m, err)
		}
	}
}

// Other programs of the host that use up the ephemeral ports of the node's address do not keep manxd from connecting.
func TestDialWhileOthersHoldThePorts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	for _, args := range [][]string{{"ip", "link", "set", "lo", "up"},
		{"sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40003"}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	sink, err := net.Listen("tcp4", "127.0.0.9:7777")
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	router, err := net.Listen("tcp4", "127.0.0.3:1790")
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	held := 0
	for ; ; held++ {
		c, err := net.Dial("tcp4", sink.Addr().String())
		if err != nil {
			break
		}
		defer c.Close()
	}
	if held != 4 {
		t.Fatalf("%d ports are held", held)
	}
	e := newEnd(t, "10.0.0.1", "127.0.0.3", Peer{Source: netip.MustParseAddr("127.0.0.1"), Port: 1790, Passive: true})
	c, err := e.peer.dial()
	if err != nil {
		t.Fatal(err)
	}
	c.close(nil)
}
