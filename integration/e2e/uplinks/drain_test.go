package uplinks

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestDrainPeer drains an uplink of a host, and then a router on all its hosts, takes them away and back: no packet is
// lost, although routers with "bfd graceful" would use a dead path for two minutes.
func TestDrainPeer(t *testing.T) {
	if _, err := lab.Require("ip", "bird", "birdc", "nft"); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	f := newFabric(t, "wd", "graceful", documented(t))
	x := f.startTraffic(t)
	f.usesBothUplinks(t)
	n1, n := f.hosts[0], f.hosts[1]
	out, err := n1.Manxctl("node", "drain", n.Name, "--peer", "uplink-c")
	if want := `there is no peer "uplink-c": the peers are 10.200.1.1 (uplink-a), 10.200.101.1 (uplink-b)`; err == nil ||
		!strings.Contains(out, want) {
		t.Errorf("%v: %s; want %s", err, out, want)
	}

	from := time.Now()
	manxctl(t, n1, "peer 10.200.1.1: drained", "node", "drain", n.Name, "--peer", "uplink-a")
	manxctl(t, n1, "peer uplink-a: drained already", "node", "drain", n.Name, "--peer", "uplink-a")
	drained := func() {
		t.Helper()
		f.lastChoice(t, n, true)
		world.Eventually(t, func() error {
			if have := hops(t, n.Namespace, outsideNet); len(have) != 1 || have[0] != f.ToRs[1].Address(n).String() {
				return fmt.Errorf("%s: next hops to the outside: %v, want %s alone", n.Name, have, f.ToRs[1].Address(n))
			}
			return nil
		})
		world.Eventually(t, func() error {
			if out, _ := n.Manxctl("status"); !strings.Contains(out, "session with 10.200.1.1: drained") {
				return fmt.Errorf("the status lacks the drain:\n%s", out)
			}
			return nil
		})
	}
	drained()
	f.unused(t, n)
	n.Manxd().Kill()
	world.Must(t, n.StartManxd())
	world.Must(t, n.Ready(world.Limit))
	drained()
	f.settledBFD(t)
	f.unused(t, n)
	f.ip(t, "nomaster", f.port(n))
	time.Sleep(2 * time.Second) // more than BFD needs
	f.ip(t, "master "+rack(0), f.port(n))
	f.settledBFD(t)
	manxctl(t, n, "peer 10.200.1.1: in service", "node", "undrain", "--peer", "10.200.1.1")
	manxctl(t, n, "peer uplink-a: in service already", "node", "undrain", "--peer", "uplink-a")
	f.lastChoice(t, n, false)
	f.settled(t)
	if l := x.lost(from, time.Now()); l.packets > 0 {
		t.Errorf("service of an uplink: %s, want none", l)
	}
	if out, _ := n.Manxctl("status"); strings.Contains(out, "drained") {
		t.Errorf("the status after the end of the drain:\n%s", out)
	}

	from = time.Now()
	world.Parallel(len(f.hosts), func(i int) {
		manxctl(t, n1, "peer 10.200.1.1: drained", "node", "drain", f.hosts[i].Name, "--peer", "10.200.1.1")
	})
	f.unused(t, f.hosts...)
	f.ip(t, "down", "p0", "p1", "p2", toSpine)
	time.Sleep(2 * time.Second) // more than BFD needs
	f.ip(t, "up", "p0", "p1", "p2", toSpine)
	f.settledBFD(t)
	for _, n := range f.hosts {
		manxctl(t, n1, "peer 10.200.1.1: in service", "node", "undrain", n.Name, "--peer", "uplink-a")
	}
	f.settled(t)
	if l := x.lost(from, time.Now()); l.packets > 0 {
		t.Errorf("service of a router: %s, want none", l)
	}
}

// manxctl runs manxctl on a host and wants a text in its output.
func manxctl(t *testing.T, n *lab.Node, want string, args ...string) {
	t.Helper()
	if out, err := n.Manxctl(args...); err != nil || !strings.Contains(out, want) {
		t.Errorf("manxctl %s: %v: %s; want %q", strings.Join(args, " "), err, out, want)
	}
}

// lastChoice waits until the first router, and it alone, has the block of a host with GRACEFUL_SHUTDOWN, or none has.
func (f *fabric) lastChoice(t *testing.T, n *lab.Node, want bool) {
	t.Helper()
	for i, tor := range f.tors {
		world.Eventually(t, func() error {
			out, err := tor.birdc("show", "route", "all", "protocol", n.Name)
			if err == nil && (!strings.Contains(out, f.block(t, n)) ||
				strings.Contains(out, "(65535,0)") != (want && i == 0)) {
				err = fmt.Errorf("%s: GRACEFUL_SHUTDOWN: want %t\n%s", tor.name, want && i == 0, out)
			}
			return err
		})
	}
}

// unused: no flow uses the uplinks of hosts to the first router. BGP and BFD go on.
func (f *fabric) unused(t *testing.T, hosts ...*lab.Node) {
	t.Helper()
	if sent, received := rates(t, hosts, "eth0"); slices.Max(sent) > aFlow || slices.Max(received) > aFlow {
		t.Errorf("%v packets/s leave by drained uplinks and %v come", sent, received)
	}
}

// settledBFD waits until each host has both sessions, with BFD.
func (f *fabric) settledBFD(t *testing.T) {
	t.Helper()
	world.Eventually(t, func() error {
		for _, n := range f.hosts {
			if err := f.bfdUp(t, n); err != nil {
				return err
			}
		}
		return nil
	})
}
