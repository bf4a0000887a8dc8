package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

// testDrain takes a node out of the network under traffic and back, with a restart while it is out.
func (c *cluster) testDrain(t *testing.T) {
	n, block := c.n2, blocks(t, c.n2, "-4")[0]
	f := &flows{}
	c.flow(t, f, "n3-p1 to n2-p1", c.pods["n3-p1"].Namespace, c.pods["n2-p1"].IPs[0])
	f.run(t, 20)

	if out, err := c.n1.Manxctl("node", "drain", n.Name, "--no-wait", "--timeout", "10m"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.birdSays(t, c.tor1, block, "(65535,0)", true)
	eventually(t, func() error { // 2147483647 is the metric of LOCAL_PREF 0
		if r := routes(t, c.n1.Namespace, "-4", block.String()); len(r) != 1 || r[0].Metric != 1<<31-1 {
			return fmt.Errorf("%s on %s: %+v, want the last choice", block, c.n1.Name, r)
		}
		return nil
	})
	c.statusSays(t, n, "packets/s go to workloads")
	if sent, lost := f.stop(t); lost > 0 {
		t.Errorf("%d of %d pings lost while traffic could still leave, want 0", lost, sent)
	}
	out, err := c.n1.Manxctl("node", "drain", n.Name, "--timeout", "10m") // the traffic has left, so this ends
	if err != nil || !strings.Contains(out, "drained") {
		t.Fatalf("%v: %s", err, out)
	}
	c.torHas(t, c.tor1, "-4", block, false)
	c.torHas(t, c.tor2, "-4", block, false)
	c.established(t, n, sessions)

	watch := watchRoutes(t, c.n1)
	n.Manxd().Kill()
	must(t, n.StartManxd())
	must(t, n.Ready(limit))
	c.established(t, n, sessions)
	c.statusSays(t, n, "routes are withdrawn")
	watch.stop()
	if text := watch.text(t); strings.Contains(text, block.String()) {
		t.Errorf("a drained node announced %s after its restart:\n%s", block, text)
	}

	if out, err := c.n1.Manxctl("node", "undrain", n.Name); err != nil || !strings.Contains(out, "in service") {
		t.Fatalf("%v: %s", err, out)
	}
	c.torHas(t, c.tor1, "-4", block, true)
	c.birdSays(t, c.tor1, block, "(65535,0)", false)
	c.settled(t)
}

// birdSays waits until what a router knows of a prefix has, or has not, a text in it.
func (c *cluster) birdSays(t *testing.T, tor *lab.ToR, p netip.Prefix, text string, want bool) {
	t.Helper()
	eventually(t, func() error {
		out, err := tor.Birdc("show", "route", "all", p.String())
		if err == nil && strings.Contains(out, text) != want {
			err = fmt.Errorf("%s of %s has %q: want %t\n%s", p, tor.Name, text, want, out)
		}
		return err
	})
}

func (c *cluster) statusSays(t *testing.T, n *lab.Node, text string) {
	t.Helper()
	eventually(t, func() error {
		if out, _ := n.Manxctl("status"); !strings.Contains(out, text) {
			return fmt.Errorf("status of %s does not say %q:\n%s", n.Name, text, out)
		}
		return nil
	})
}
