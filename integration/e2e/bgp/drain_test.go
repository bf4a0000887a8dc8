package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testDrain drains a node under traffic and undrains it, with a restart in between.
func (c *cluster) testDrain(t *testing.T) {
	n, block := c.N2, world.Blocks(t, c.N2, "-4")[0]
	f := &world.Flows{}
	c.Flow(t, f, "n3-p1 to n2-p1", c.Pods["n3-p1"].Namespace, c.Pods["n2-p1"].IPs[0])
	f.Run(t, 20)

	if out, err := c.N1.Manxctl("node", "drain", n.Name, "--no-wait", "--timeout", "10m"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.awaitBIRD(t, c.ToR1, block, "(65535,0)", true)
	eventually(t, func() error { // 2147483647 is the metric of LOCAL_PREF 0
		if r := world.Routes(t, c.N1.Namespace, "-4", block.String()); len(r) != 1 || r[0].Metric != 1<<31-1 {
			return fmt.Errorf("%s on %s: %+v, want the last choice", block, c.N1.Name, r)
		}
		return nil
	})
	c.awaitStatus(t, n, "packets/s go to workloads")
	inPhase(t, n, "draining")
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("%d of %d pings lost while traffic could still leave, want 0", lost, sent)
	}
	out, err := c.N1.Manxctl("node", "drain", n.Name, "--timeout", "10m") // the traffic has left, so this ends
	if err != nil || !strings.Contains(out, "drained") {
		t.Fatalf("%v: %s", err, out)
	}
	c.torHas(t, c.ToR1, "-4", block, false)
	c.torHas(t, c.ToR2, "-4", block, false)
	c.Established(t, n, world.Sessions)

	watch := world.WatchRoutes(t, c.N1)
	n.Manxd().Kill()
	must(t, n.StartManxd())
	must(t, n.Ready(limit))
	c.Established(t, n, world.Sessions)
	c.awaitStatus(t, n, "routes are withdrawn")
	inPhase(t, n, "drained")
	watch.Stop()
	if text := watch.Text(t); strings.Contains(text, block.String()) {
		t.Errorf("a drained node announced %s after its restart:\n%s", block, text)
	}

	if out, err := c.N1.Manxctl("node", "undrain", n.Name); err != nil || !strings.Contains(out, "in service") {
		t.Fatalf("%v: %s", err, out)
	}
	c.torHas(t, c.ToR1, "-4", block, true)
	c.awaitBIRD(t, c.ToR1, block, "(65535,0)", false)
	c.Settled(t)
	inPhase(t, n, "in_service")
}

// inPhase fails the test unless the metric has the node in this phase alone.
func inPhase(t *testing.T, n *lab.Node, want string) {
	t.Helper()
	for _, phase := range []string{"in_service", "draining", "drained"} {
		got := world.Metric(t, n, fmt.Sprintf("manx_node_drain_phase{phase=%q}", phase))
		if got == 1 != (phase == want) {
			t.Errorf("the metric of phase %s is %v, want the node %s", phase, got, want)
		}
	}
}

// awaitBIRD waits until a router's output about a prefix has, or lacks, a text.
func (c *cluster) awaitBIRD(t *testing.T, tor *lab.ToR, p netip.Prefix, text string, want bool) {
	t.Helper()
	eventually(t, func() error {
		out, err := tor.Birdc("show", "route", "all", p.String())
		if err == nil && strings.Contains(out, text) != want {
			err = fmt.Errorf("%s of %s has %q: want %t\n%s", p, tor.Name, text, want, out)
		}
		return err
	})
}

func (c *cluster) awaitStatus(t *testing.T, n *lab.Node, text string) {
	t.Helper()
	eventually(t, func() error {
		if out, _ := n.Manxctl("status"); !strings.Contains(out, text) {
			return fmt.Errorf("status of %s lacks %q:\n%s", n.Name, text, out)
		}
		return nil
	})
}
