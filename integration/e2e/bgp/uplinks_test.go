package bgp

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testUplinks checks the route to the world, which both routers announce.
func (c *cluster) testUplinks(t *testing.T) {
	for _, n := range c.Nodes {
		c.nextHops(t, n, c.ToR1, c.ToR2)
	}
	c.crashedRouter(t)
	c.stoppedRouter(t)
	c.Settled(t)
	for _, n := range c.Nodes {
		c.nextHops(t, n, c.ToR1, c.ToR2)
	}
}

// nextHops waits until the node's route to the world has exactly these routers as next hops.
func (c *cluster) nextHops(t *testing.T, n *lab.Node, tors ...*lab.ToR) {
	t.Helper()
	var want []string
	for _, tor := range tors {
		want = append(want, tor.Address(n).String())
	}
	slices.Sort(want)
	eventually(t, func() error {
		have := c.worldHops(t, n)
		if !slices.Equal(have, want) {
			return fmt.Errorf("%s: next hops to %s: %v, want %v", n.Name, lab.External, have, want)
		}
		return nil
	})
}

func (c *cluster) worldHops(t *testing.T, n *lab.Node) (hops []string) {
	t.Helper()
	for _, r := range world.Routes(t, n.Namespace, "-4", "proto", "12") {
		if r.Dst != lab.External.String() {
			continue
		}
		if r.Gateway != "" {
			hops = append(hops, r.Gateway)
		}
		for _, h := range r.NextHops {
			hops = append(hops, h.Gateway)
		}
	}
	slices.Sort(hops)
	return hops
}

// worldFlows run from every pod to the world: the kernel chooses the uplink by address.
func (c *cluster) worldFlows(t *testing.T) *world.Flows {
	f := &world.Flows{}
	for name, p := range c.Pods {
		c.Flow(t, f, name+" to the world", p.Namespace, lab.External.Addr().Next())
	}
	return f
}

// crashedRouter kills the BIRD of a router, which may restart gracefully (RFC 4724): its kernel still forwards, so
// nothing changes on the nodes.
func (c *cluster) crashedRouter(t *testing.T) {
	f := c.worldFlows(t)
	f.Run(t, 20)
	c.ToR2.BIRD().Kill()
	for _, n := range c.Nodes {
		eventually(t, func() error {
			if p := world.Peer(t, n, c.ToR2.Address(n)); p.GetState() == "Established" {
				return fmt.Errorf("%s has not noticed the loss of %s", n.Name, p.GetAddress())
			}
			return nil
		})
		if p := world.Peer(t, n, c.ToR2.Address(n)); p.GetReason() == "" {
			t.Errorf("%s does not report the lost session: %v", n.Name, p)
		} else {
			t.Logf("%s: %s: %s", n.Name, p.GetPhase(), p.GetReason())
		}
		if hops := c.worldHops(t, n); len(hops) != 2 {
			t.Errorf("%s: next hops %v while the router may restart, want both", n.Name, hops)
		}
	}
	f.Run(t, 100)
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("crash of BIRD: %d of %d pings lost, want 0", lost, sent)
	} else {
		t.Logf("crash of BIRD: 0 of %d pings lost, both next hops stay", sent)
	}
	must(t, c.ToR2.StartBIRD())
	c.Settled(t)
	for _, n := range c.Nodes {
		c.nextHops(t, n, c.ToR1, c.ToR2)
	}
}

// stoppedRouter shuts BIRD down, which sends a Cease and empties the router's table: packets in flight at that moment
// are lost, and none once the nodes have received it.
func (c *cluster) stoppedRouter(t *testing.T) {
	f := c.worldFlows(t)
	f.Run(t, 20)
	start := time.Now()
	must(t, c.ToR2.BIRD().Signal(syscall.SIGTERM))
	<-c.ToR2.BIRD().Done()
	for _, n := range c.Nodes {
		c.nextHops(t, n, c.ToR1)
	}
	took := time.Since(start)
	f.Run(t, 20)
	sent, lost := f.Stop(t)
	// A ping each 10 ms: the losses of one flow during the transmission of the Cease.
	if most := len(f.All) * int(took/(10*time.Millisecond)+1); lost > most {
		t.Errorf("shutdown of BIRD: %d of %d pings lost, but %s explain %d at most", lost, sent, took, most)
	}
	t.Logf("shutdown of BIRD: one next hop everywhere after %d ms, %d of %d pings lost", took.Milliseconds(), lost,
		sent)

	f = c.worldFlows(t)
	f.Run(t, 100)
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("over the other uplink: %d of %d pings lost, want 0", lost, sent)
	}
	for _, n := range c.Nodes {
		p := world.Peer(t, n, c.ToR2.Address(n))
		t.Logf("%s: %s: %s", n.Name, p.GetPhase(), p.GetReason())
		if !strings.Contains(p.GetReason(), c.ToR2.Address(n).String()) {
			t.Errorf("%s: reason %q does not name the peer", n.Name, p.GetReason())
		}
	}
	must(t, c.ToR2.StartBIRD())
}
