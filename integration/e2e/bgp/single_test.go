package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// single is one node whose only peer is configured by the test.
type single struct {
	*lab.Lab
	n   *lab.Node
	tor *lab.ToR
	pod *lab.Pod
}

// TestSingle runs the tests of a node with a scripted peer.
func TestSingle(t *testing.T) {
	t.Parallel() // it has a lab of its own, and mostly waits
	l := world.NewLab(t, lab.Spec{Name: world.LabName("s"), PlainRouters: true, Nodes: []lab.NodeSpec{{Name: "n1"}}})
	s := &single{Lab: l, n: l.Nodes[0], tor: l.ToRs[0]}
	world.InOrder(t, s, []world.Step[*single]{
		{Name: "ports that are taken cost what they serve", Run: (*single).testPortsTaken},
		{Name: "routes for this node itself are refused", Run: (*single).testRefusedRoutes},
		{Name: "two hundred thousand routes", Run: (*single).testFlood},
	})
}

// testPortsTaken starts the daemon while other programs listen on its ports. Pods can still be attached, the status
// lists the unserved ports, and each port is opened when it is free.
func (s *single) testPortsTaken(t *testing.T) {
	var listeners []net.Listener
	must(t, namespace.Inside(s.n.Namespace, func() {
		for _, at := range []string{"0.0.0.0:179", "127.0.0.1:50051", "127.0.0.1:9099"} {
			l, err := net.Listen("tcp", at)
			if err != nil {
				t.Errorf("listen on %s: %v", at, err)
				continue
			}
			listeners = append(listeners, l)
		}
	}))
	must(t, s.n.StartManxd(append(s.n.EmbedDatastore(), "--no-default-pools")...))
	var out string
	eventually(t, func() error {
		var err error
		if out, err = s.n.Manxctl("status"); world.ExitCode(err) != 4 || !strings.Contains(out, "in sync at revision") {
			return fmt.Errorf("manxctl status should end with 4: %v\n%s", err, out)
		}
		return nil
	})
	must(t, s.n.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods}
spec: {cidr: 10.244.0.0/16}
---
%s`, world.TorPeer(s.n, "router", s.tor.Address(s.n), ""))))
	var err error
	s.pod, err = s.n.AddPod("pod")
	must(t, err)
	eventually(t, func() error { return lab.Ping(s.n.Namespace, s.pod.IP4()) })
	eventually(t, func() error {
		if out, err = s.n.Manxctl("status"); !strings.Contains(out, "10.200.1.1 ") {
			return fmt.Errorf("no session in manxctl status: %v\n%s", err, out)
		}
		return nil
	})
	world.Contains(t, "manxctl status", out, "--gobgp-listen=127.0.0.1:50051", "--http-listen=127.0.0.1:9099",
		"another process listens on it")
	session := world.LineWith(out, "10.200.1.1 ")
	world.Contains(t, "the session in manxctl status", session, "address already in use", "port 179", "stop it first")
	t.Log(out)

	for _, l := range listeners {
		must(t, l.Close())
	}
	must(t, s.n.Ready(limit))
	t.Log(world.Measure(t, s.n))
	if n := strings.Count(s.n.Log(), "BGP is not as it should be"); n != 1 {
		t.Errorf("the log reports %d times that port 179 is taken, want once", n)
	}
	eventually(t, func() error {
		if out, err = s.n.Run("gobgp", "global"); err != nil || !strings.Contains(out, "64512") {
			return fmt.Errorf("gobgp global: %w\n%s", err, out)
		}
		return nil
	})
	if out, err := s.n.Run("setpriv", "--reuid=65534", "--clear-groups", "gobgp", "global"); err == nil ||
		!strings.Contains(out, "PermissionDenied") || !strings.Contains(out, "--gobgp-allow-uids") {
		t.Errorf("gobgp global of another user: %v\n%s", err, out)
	}
	out, err = s.n.Manxctl("status")
	if strings.Contains(out, "Notice:") {
		t.Errorf("the notices should be gone: %v\n%s", err, out)
	}
	world.Contains(t, "the session in manxctl status", world.LineWith(out, "10.200.1.1 "),
		"connection refused by 10.200.1.1")
}

func (s *single) connect(t *testing.T) *lab.Peer {
	t.Helper()
	p, err := lab.ConnectPeer(s.tor.Namespace, s.n.IP4.String()+":179", 65000, s.tor.Address(s.n))
	must(t, err)
	t.Cleanup(p.Close)
	eventually(t, func() error {
		if q := world.Peer(t, s.n, s.tor.Address(s.n)); q.GetState() != "Established" {
			return fmt.Errorf("the session is %s: %s", q.GetState(), q.GetReason())
		}
		return nil
	})
	must(t, p.Send(lab.EndOfRIB()))
	must(t, s.n.Ready(limit))
	return p
}

// testRefusedRoutes: a peer announces routes of the node, beside a valid route.
func (s *single) testRefusedRoutes(t *testing.T) {
	block := world.Blocks(t, s.n, "-4")[0]
	inside := netip.PrefixFrom(block.Addr(), block.Bits()+1)
	own := fmt.Sprint(world.OurRoutes(t, s.n.Namespace, "-4"))
	eventually(t, func() error { return s.routeVia(t, block) })
	f := &world.Flows{}
	flow, err := s.StartFlow(s.tor.Namespace, s.pod.IP4())
	must(t, err)
	f.All, f.Name = append(f.All, flow), append(f.Name, "router to pod")
	f.Run(t, 10)
	p := s.connect(t)
	router, self := s.tor.Address(s.n), s.n.IP4
	loop, good := netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("192.0.2.0/24")
	for _, u := range [][]byte{
		lab.Announce(65000, router, []netip.Prefix{block, inside, netip.PrefixFrom(self, 32)}),
		lab.Announce(65000, self, []netip.Prefix{loop}),
		lab.Announce(65000, router, []netip.Prefix{good}),
	} {
		must(t, p.Send(u))
	}
	eventually(t, func() error {
		if len(world.OurRoutesTo(t, s.n, "-4", good.String())) != 1 {
			return fmt.Errorf("no route to %s", good)
		}
		return nil
	})
	for _, dst := range []string{inside.String(), self.String(), loop.String()} {
		if r := world.OurRoutesTo(t, s.n, "-4", dst); len(r) > 0 {
			t.Errorf("the kernel has a refused route: %v", r)
		}
	}
	if now := fmt.Sprint(slices.DeleteFunc(world.OurRoutes(t, s.n.Namespace, "-4"), func(r world.KernelRoute) bool {
		return r.Dst == good.String()
	})); now != own {
		t.Errorf("own routes changed: %s, were %s", now, own)
	}
	var status string
	eventually(t, func() error {
		if status, err = s.n.Manxctl("status"); err != nil || !strings.Contains(status, block.String()+":") {
			return fmt.Errorf("the status does not name %s: %w\n%s", block, err, status)
		}
		return nil
	})
	table, err := s.n.Manxctl("routes")
	must(t, err)
	for prefix, reason := range map[string]string{
		block.String() + ":":           "this node originates the prefix itself",
		inside.String() + ":":          "which belongs to this node",
		self.String() + "/32":          "address of this node",
		"route " + loop.String() + ":": "the next hop is this node",
	} {
		line := world.LineWith(status, prefix)
		if !strings.Contains(line, reason) {
			line = world.LineWith(table, prefix)
		}
		if !strings.Contains(line, reason) {
			t.Errorf("neither status nor routes report that %s is refused because %q:\n%s\n%s", prefix, reason, status,
				table)
			continue
		}
		t.Log(strings.Join(strings.Fields(line), " "))
	}
	if state := world.Peer(t, s.n, router).GetState(); state != "Established" {
		t.Errorf("the session is %s, want it to stay up", state)
	}
	f.Run(t, 20)
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("%d of %d pings lost, want 0", lost, sent)
	}
	p.Close()
	eventually(t, func() error {
		if now := fmt.Sprint(world.OurRoutes(t, s.n.Namespace, "-4")); now != own {
			return fmt.Errorf("routes after the session: %s, want %s", now, own)
		}
		return nil
	})
}

// routeVia adds a route to the pods on the router, which does not run BIRD.
func (s *single) routeVia(t *testing.T, block netip.Prefix) error {
	t.Helper()
	out, err := namespace.Command(s.tor.Namespace, "ip", "route", "replace", block.String(), "via",
		s.n.IP4.String()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return lab.Ping(s.tor.Namespace, s.pod.IP4())
}

// testFlood: the peer announces far more routes than a rack's router should.
func (s *single) testFlood(t *testing.T) {
	const many, perUpdate = 200_000, 500
	before, routesBefore := world.Measure(t, s.n), fibSize(t, s.n)
	flow, err := s.StartFlow(s.tor.Namespace, s.pod.IP4())
	must(t, err)
	f := &world.Flows{All: []*lab.Flow{flow}, Name: []string{"router to pod"}}
	f.Run(t, 10)
	p := s.connect(t)
	start := time.Now()
	for list := range slices.Chunk(lab.Prefixes(many), perUpdate) {
		must(t, p.Send(lab.Announce(65000, s.tor.Address(s.n), list)))
	}
	sent := time.Since(start)
	must(t, lab.Eventually(2*limit, func() error {
		if n := fibSize(t, s.n); n < routesBefore+many {
			return fmt.Errorf("%d routes in the kernel, want %d more than %d", n, many, routesBefore)
		}
		return nil
	}))
	t.Logf("%d routes: sent after %.1f s, in the kernel after %.1f s; %s, at most %.0f MB; before %s", many,
		sent.Seconds(), time.Since(start).Seconds(),
		world.Measure(t, s.n), world.Memory(t, s.n.Manxd().PID(), "VmHWM"), before)
	var line string
	eventually(t, func() error {
		out, err := s.n.Manxctl("status")
		line = world.LineWith(out, "prefixes")
		if err != nil || !strings.Contains(line, s.tor.Address(s.n).String()) {
			return fmt.Errorf("manxctl status should warn of the many prefixes: %w\n%s", err, out)
		}
		return nil
	})
	t.Log(strings.TrimSpace(line))
	must(t, s.n.Ready(limit))
	other, err := s.n.AddPod("during")
	must(t, err)
	eventually(t, func() error { return lab.Ping(s.n.Namespace, other.IP4()) })
	must(t, other.Delete())
	r, err := world.Call(t, s.n, manxv1.ManxClient.ListRoutes, &manxv1.ListRoutesRequest{})
	must(t, err)
	if len(r.GetRoutes()) < many {
		t.Errorf("the control API lists %d routes, want more than %d", len(r.GetRoutes()), many)
	}

	t.Logf("before the session ends: %s", world.Measure(t, s.n))
	start = time.Now()
	p.Close()
	must(t, lab.Eventually(2*limit, func() error {
		if n := fibSize(t, s.n); n != routesBefore {
			return fmt.Errorf("%d routes in the kernel, want %d as before", n, routesBefore)
		}
		return nil
	}))
	t.Logf("gone %.1f s after the session; %s", time.Since(start).Seconds(), world.Measure(t, s.n))
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("%d of %d pings to the pod lost, want 0", lost, sent)
	} else {
		t.Logf("0 of %d pings to the pod lost", sent)
	}
	world.Stable(t, s.n, before)
}

// fibSize is the number of IPv4 prefixes in the main table of a node.
func fibSize(t *testing.T, n *lab.Node) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/fib_triestat", n.Manxd().PID()))
	must(t, err)
	_, main, _ := strings.Cut(string(b), "Main:")
	_, rest, _ := strings.Cut(main, "Prefixes:")
	size, err := strconv.Atoi(strings.Fields(rest)[0])
	must(t, err)
	return size
}
