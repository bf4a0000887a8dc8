package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

// TestRollingRestarts kills and starts daemons of a mesh of three, with a router, in the ways that an upgrade does:
// one after the other, two at the same time, all, and one ten times in a row. Nobody who runs on loses a route or
// sees a NOTIFICATION, and two nodes have one connection.
func TestRollingRestarts(t *testing.T) {
	t.Parallel() // it has a lab of its own, and mostly waits
	c := newRolling(t)
	restart := func(nodes ...*lab.Node) {
		t.Helper()
		for _, n := range nodes {
			n.Manxd().Kill()
		}
		for _, n := range nodes {
			must(t, n.StartManxd())
		}
		for _, n := range nodes {
			must(t, n.Ready(limit))
		}
		for _, n := range c.Nodes {
			c.established(t, n, 3)
		}
	}
	for _, step := range []struct {
		name  string
		times int
		nodes []*lab.Node
	}{
		{"n2", 1, []*lab.Node{c.n2}},
		{"n3", 1, []*lab.Node{c.n3}},
		{"n1, which holds the datastore", 1, []*lab.Node{c.n1}},
		{"n2 and n3 at the same time", 2, []*lab.Node{c.n2, c.n3}},
		{"all", 1, c.Nodes},
		{"n2 ten times in a row", 10, []*lab.Node{c.n2}},
	} {
		t.Run(step.name, func(t *testing.T) {
			watches := map[*lab.Node]*monitor{}
			for _, n := range c.Nodes {
				watches[n] = watchRoutes(t, n)
			}
			f := &flows{}
			c.flow(t, f, "n1-p1 to n2-p1", c.pods["n1-p1"].Namespace, c.pods["n2-p1"].IP4())
			c.flow(t, f, "n3-p1 to n2-p1", c.pods["n3-p1"].Namespace, c.pods["n2-p1"].IP4())
			c.flow(t, f, "tor1 to n3-p1", c.tor1.Namespace, c.pods["n3-p1"].IP4())
			logged := len(c.tor1.Log())
			for range step.times {
				restart(step.nodes...)
			}
			f.run(t, 20)
			if sent, lost := f.stop(t); lost > 0 {
				t.Errorf("%d of %d pings lost, want 0", lost, sent)
			}
			for n, w := range watches {
				w.stop()
				if gone := w.deleted(t); len(gone) > 0 {
					t.Errorf("%s deleted routes:\n%s", n.Name, strings.Join(gone, "\n"))
				}
			}
			c.oneConnectionEach(t)
			for line := range strings.Lines(c.tor1.Log()[logged:]) {
				if strings.Contains(line, "Received: ") {
					t.Errorf("the router got a NOTIFICATION: %s", line)
				}
			}
		})
	}
}

func newRolling(t *testing.T) *cluster {
	t.Helper()
	nodes := []lab.NodeSpec{{Name: "n1"}, {Name: "n2", Rack: 1}, {Name: "n3", Rack: 2}}
	l := newLab(t, lab.Spec{Name: labName("l"), Nodes: nodes})
	c := &cluster{Lab: l, n1: l.Nodes[0], n2: l.Nodes[1], n3: l.Nodes[2], tor1: l.ToRs[0], pods: map[string]*lab.Pod{}}
	must(t, c.n1.StartManxd(append(c.n1.EmbedDatastore(), "--no-default-pools", "--ip=autodetect")...))
	must(t, c.n1.Ready(limit))
	docs := []string{fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}\n", pool4)}
	for _, n := range c.Nodes {
		docs = append(docs, torPeer(n, "tor-"+n.Name, c.tor1.Address(n), ""))
	}
	must(t, c.n1.Apply(strings.Join(docs, "---")))
	for _, n := range c.Nodes[1:] {
		must(t, n.StartManxd(append(lab.UseDatastore(c.n1), "--no-default-pools", "--ip=autodetect")...))
	}
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
		p, err := n.AddPod(n.Name + "-p1")
		must(t, err)
		c.pods[n.Name+"-p1"] = p
	}
	for _, n := range c.Nodes {
		c.established(t, n, 3)
	}
	for _, pair := range [][2]string{{"n1-p1", "n2-p1"}, {"n2-p1", "n3-p1"}, {"n3-p1", "n1-p1"}} {
		c.reachable(t, pair[0], pair[1])
	}
	return c
}

// oneConnectionEach checks that each pair of nodes has one BGP connection, which the one with the greater address
// made.
func (c *cluster) oneConnectionEach(t *testing.T) {
	t.Helper()
	for _, n := range c.Nodes {
		eventually(t, func() error {
			out, err := n.Run("ss", "-Htn", "state", "established", "( dport = :179 or sport = :179 )")
			if err != nil {
				return err
			}
			var have, want []string
			for line := range strings.Lines(out) {
				f := strings.Fields(line)
				local, remote := f[len(f)-2], f[len(f)-1]
				for _, o := range c.Nodes {
					if strings.HasPrefix(remote, o.IP4.String()+":") {
						have = append(have, fmt.Sprintf("%s connected %v", o.Name, strings.HasSuffix(local, ":179")))
					}
				}
			}
			for _, o := range c.Nodes {
				if o != n {
					want = append(want, fmt.Sprintf("%s connected %v", o.Name, n.IP4.Less(o.IP4)))
				}
			}
			slices.Sort(have)
			if !slices.Equal(have, want) {
				return fmt.Errorf("%s has the connections %v, want %v", n.Name, have, want)
			}
			return nil
		})
	}
}
