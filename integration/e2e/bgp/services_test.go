package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/integration/e2e/world"
)

// testServices advertises ranges of service addresses: the routers get them from every node, no node's kernel does.
func (c *cluster) testServices(t *testing.T) {
	clusterIPs, balanced := netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("80.15.0.0/24")
	must(t, c.N1.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: BGPConfiguration\n"+
		"metadata: {name: default}\n"+
		"spec: {serviceClusterIPs: [{cidr: %s}], serviceLoadBalancerIPs: [{cidr: %s}]}\n", clusterIPs, balanced)))
	c.announcers(t, clusterIPs, 3)
	c.announcers(t, balanced, 3)
	eventually(t, func() error { // n2 has received the others' announcements
		out, err := exec.Command("birdc", "-s", world.BIRDSocket(c.N2), "show", "route", "all", "for",
			clusterIPs.String()).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "via "+c.N3.IP4.String()) {
			return fmt.Errorf("n2 has not learned %s of n3: %v: %s", clusterIPs, err, out)
		}
		return nil
	})
	for _, n := range c.Nodes {
		for _, p := range []netip.Prefix{clusterIPs, balanced} {
			if r := world.Routes(t, n.Namespace, "-4", p.String()); len(r) > 0 {
				t.Errorf("the kernel of %s got a route for services: %+v", n.Name, r)
			}
		}
	}
	c.awaitStatus(t, c.N1, "no Service is known here")
	out, err := c.N1.Manxctl("node", "problems")
	if strings.Contains(out, clusterIPs.String()) {
		t.Errorf("that several nodes announce services is no problem: %v\n%s", err, out)
	}

	undo := c.label(t, "n3", bgp.LabelExclude, "true")
	c.announcers(t, clusterIPs, 2)
	undo()
	c.announcers(t, clusterIPs, 3)

	if out, err := c.N1.Manxctl("delete", "bgpconfiguration", "default"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c.torHas(t, c.ToR1, "-4", clusterIPs, false)
	c.torHas(t, c.ToR2, "-4", balanced, false)
	c.Settled(t)
}

// announcers waits until the first router has this many paths to a prefix.
func (c *cluster) announcers(t *testing.T, p netip.Prefix, want int) {
	t.Helper()
	eventually(t, func() error {
		out, err := c.ToR1.Birdc("show", "route", "for", p.String())
		if n := strings.Count(out, "\tvia "); err != nil || n != want {
			return fmt.Errorf("%s is announced by %d nodes, want %d: %v: %s", p, n, want, err, out)
		}
		return nil
	})
}

// label sets a label of a Node; undo removes it.
func (c *cluster) label(t *testing.T, node, key, value string) (undo func()) {
	t.Helper()
	path := "/calico/resources/v3/projectcalico.org/nodes/" + node
	change := func(set bool) {
		t.Helper()
		var o map[string]any
		must(t, json.Unmarshal([]byte(c.Raw(t, path)[path]), &o))
		meta := o["metadata"].(map[string]any)
		labels, _ := meta["labels"].(map[string]any)
		if labels == nil {
			labels = map[string]any{}
		}
		labels[key] = value
		if !set {
			delete(labels, key)
		}
		meta["labels"] = labels
		raw, err := json.Marshal(o)
		must(t, err)
		c.Put(t, path, string(raw))
	}
	change(true)
	return func() { change(false) }
}
