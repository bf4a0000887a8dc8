package node

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

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

// testSilentDatastore loses the packets of the datastore without a trace: connections stay open. Status and a metric
// show how old the last answer is, long before anything else does. The node stays ready, since it forwards packets.
func (c *cluster) testSilentDatastore(t *testing.T) {
	n := c.N2
	answered := func() float64 { return world.Metric(t, n, "manx_datastore_answered_timestamp_seconds") }
	_, err := n.Run("sh", "-c", "nft add table ip silent && nft add chain ip silent in "+
		"'{ type filter hook input priority -10; }' && nft add rule ip silent in tcp sport 2379 drop")
	must(t, err)
	defer func() {
		_, err := n.Run("nft", "delete", "table", "ip", "silent")
		must(t, err)
		eventually(t, func() error { // it is asked every half a minute
			if age := time.Since(time.UnixMilli(int64(answered() * 1000))); age > 5*time.Second {
				return fmt.Errorf("the datastore is back, and the last answer is %v old", age)
			}
			return nil
		})
		must(t, n.Ready(limit))
	}()
	before := answered()
	age := regexp.MustCompile(`in sync at revision .*, last answer ([0-9.hms]+) ago`)
	eventually(t, func() error {
		out, err := n.Manxctl("status")
		must(t, err) // the exit code of a node that is ready
		m := age.FindStringSubmatch(world.LineWith(out, "Datastore:"))
		if m == nil {
			return fmt.Errorf("no age of the last answer:\n%s", out)
		}
		if d, err := time.ParseDuration(m[1]); err != nil || d < 4*time.Second {
			return fmt.Errorf("the last answer is %v old (%v)", d, err)
		}
		return nil
	})
	if now := answered(); now != before {
		t.Errorf("an answer came at %v, after %v, from a datastore whose packets are lost", now, before)
	}
	if page, err := n.Get("/readyz"); err != nil {
		t.Errorf("/readyz: %v: %s", err, page)
	}
}
