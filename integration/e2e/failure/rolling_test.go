package failure

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// TestRollingRestarts kills and starts daemons of a mesh of three, with a router, like an upgrade: one after the other,
// two at the same time, all, and one ten times in a row. No running node loses a route or receives a NOTIFICATION, and
// each pair of nodes has one connection.
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
			c.Established(t, n, 3)
		}
	}
	for _, step := range []struct {
		name  string
		times int
		nodes []*lab.Node
	}{
		{"n2", 1, []*lab.Node{c.N2}},
		{"n3", 1, []*lab.Node{c.N3}},
		{"n1, which holds the datastore", 1, []*lab.Node{c.N1}},
		{"n2 and n3 at the same time", 2, []*lab.Node{c.N2, c.N3}},
		{"all", 1, c.Nodes},
		{"n2 ten times in a row", 10, []*lab.Node{c.N2}},
	} {
		t.Run(step.name, func(t *testing.T) {
			watches := map[*lab.Node]*world.Monitor{}
			for _, n := range c.Nodes {
				watches[n] = world.WatchRoutes(t, n)
			}
			f := &world.Flows{}
			c.Flow(t, f, "n1-p1 to n2-p1", c.Pods["n1-p1"].Namespace, c.Pods["n2-p1"].IP4())
			c.Flow(t, f, "n3-p1 to n2-p1", c.Pods["n3-p1"].Namespace, c.Pods["n2-p1"].IP4())
			c.Flow(t, f, "tor1 to n3-p1", c.ToR1.Namespace, c.Pods["n3-p1"].IP4())
			logged := len(c.ToR1.Log())
			for range step.times {
				restart(step.nodes...)
			}
			f.Run(t, 20)
			if sent, lost := f.Stop(t); lost > 0 {
				t.Errorf("%d of %d pings lost, want 0", lost, sent)
			}
			for n, w := range watches {
				w.Stop()
				if gone := w.Deleted(t); len(gone) > 0 {
					t.Errorf("%s deleted routes:\n%s", n.Name, strings.Join(gone, "\n"))
				}
			}
			c.oneConnectionEach(t)
			for line := range strings.Lines(c.ToR1.Log()[logged:]) {
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
	l := world.NewLab(t, lab.Spec{Name: world.LabName("l"), Nodes: nodes})
	c := &cluster{&world.Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], N3: l.Nodes[2], ToR1: l.ToRs[0],
		Pods: map[string]*lab.Pod{}}}
	must(t, c.N1.StartManxd(append(c.N1.EmbedDatastore(), "--no-default-pools", "--ip=autodetect")...))
	must(t, c.N1.Ready(limit))
	docs := []string{fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}\n", world.Pool4)}
	for _, n := range c.Nodes {
		docs = append(docs, world.TorPeer(n, "tor-"+n.Name, c.ToR1.Address(n), ""))
	}
	must(t, c.N1.Apply(strings.Join(docs, "---")))
	for _, n := range c.Nodes[1:] {
		must(t, n.StartManxd(append(lab.UseDatastore(c.N1), "--no-default-pools", "--ip=autodetect")...))
	}
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
		p, err := n.AddPod(n.Name + "-p1")
		must(t, err)
		c.Pods[n.Name+"-p1"] = p
	}
	for _, n := range c.Nodes {
		c.Established(t, n, 3)
	}
	for _, pair := range [][2]string{{"n1-p1", "n2-p1"}, {"n2-p1", "n3-p1"}, {"n3-p1", "n1-p1"}} {
		c.Reachable(t, pair[0], pair[1])
	}
	return c
}

// oneConnectionEach checks that each pair of nodes has one BGP connection, made by the node with the greater address.
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
