package node

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testStatus runs the commands with which an operator checks a healthy node.
func (c *cluster) testStatus(t *testing.T) {
	out, err := c.N2.Manxctl("status")
	must(t, err)
	world.Contains(t, "manxctl status", out,
		"n2 ("+c.N2.IP4.String()+"/24, "+c.N2.IP6.String()+"/64, AS 64512, router ID "+
			c.N2.IP4.String()+")",
		"etcdv3, in sync at revision", "8 sessions: 8 Established", "2 endpoints: 2 applied", "Health:     ok")

	out, err = c.N2.Manxctl("status", "-o", "json")
	must(t, err)
	var status struct {
		Node  string
		Ready bool
		Peers map[string]int
	}
	must(t, json.Unmarshal([]byte(out), &status))
	if status.Node != "n2" || !status.Ready || status.Peers["Established"] != world.Sessions {
		t.Errorf("manxctl status -o json: %+v", status)
	}

	out, err = c.N2.Manxctl("node", "status")
	must(t, err)
	world.Contains(t, "manxctl node status", out, "node n2, AS 64512", "IPv4 BGP status", "IPv6 BGP status",
		c.N1.IP4.String(), c.N1.IP6.String(), c.ToR1.Address(c.N2).String(), c.ToR2.Address6(c.N2).String(),
		"node-to-node mesh", "node specific")
	if n := strings.Count(out, "| up "); n != world.Sessions {
		t.Errorf("manxctl node status shows %d sessions up, want %d:\n%s", n, world.Sessions, out)
	}

	out, err = c.N2.Manxctl("describe", "peer", c.ToR2.Address(c.N2).String())
	must(t, err)
	world.Contains(t, "manxctl describe peer", out, "BGPPeer/tor2-n2", "AS 65000", "hold time 240 s",
		"graceful restart")

	out, err = c.N2.Manxctl("node", "addresses")
	must(t, err)
	world.Contains(t, "manxctl node addresses", out, c.N2.IP4.String(), c.N2.IP6.String(), "eth0", "eth1",
		"interface=eth0",
		"*")
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "eth1" && strings.Contains(line, "*") {
			t.Errorf("an address of eth1 is chosen: %s", line)
		}
	}

	out, err = c.N2.Manxctl("routes")
	must(t, err)
	world.Contains(t, "manxctl routes", out, "203.0.113.0/24", "workload ", "blackhole", "applied",
		c.Pods["n2-p1"].IP4().String()+"/32", c.Pods["n2-p1"].IP6().String()+"/128")
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "PREFIX") && !strings.Contains(line, "applied") {
			t.Errorf("a route of a healthy node is not applied: %s", line)
		}
	}

	out, err = c.N2.Manxctl("node", "endpoints")
	must(t, err)
	world.Contains(t, "manxctl node endpoints", out, c.Pods["n2-p2"].IP4().String(), "applied")
	if _, err = c.N2.Manxctl("node", "status", "--nonsense"); world.ExitCode(err) != 2 {
		t.Errorf("a wrong flag should end manxctl with 2: %v", err)
	}
}
