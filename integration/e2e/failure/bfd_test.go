package failure

import (
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// bfdUp waits until BFD is up on all sessions of all nodes.
func (c *cluster) bfdUp(t *testing.T) {
	t.Helper()
	for _, n := range c.Nodes {
		c.Established(t, n, 2)
		eventually(t, func() error {
			for _, p := range world.Peers(t, n) {
				if b := p.GetBfd(); b.GetState() != "Up" {
					return fmt.Errorf("%s: BFD with %s is %q: %s", n.Name, p.GetAddress(), b.GetState(), b.GetReason())
				}
			}
			return nil
		})
	}
}

// TestBFD enables BFD for the mesh, which is multihop here, and for the routers, by annotations. Restarts still lose no
// packet. When a node is cut off, the other nodes remove its routes at once.
func TestBFD(t *testing.T) {
	const interval = 100 * time.Millisecond
	l := world.NewLab(t, lab.Spec{Name: world.LabName("b"), BFD: true, Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2",
		Rack: 1}}})
	c := &cluster{&world.Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], ToR1: l.ToRs[0], Pods: map[string]*lab.Pod{}}}
	must(t, c.N1.StartManxd(append(c.N1.EmbedDatastore(), "--no-default-pools", "--ip=autodetect")...))
	must(t, c.N1.Ready(limit))
	annotations := fmt.Sprintf(`annotations: {manx.io/bfd: "true", manx.io/bfd-interval: %s}`, interval)
	resources := fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}\n"+
		"---\napiVersion: projectcalico.org/v3\nkind: BGPConfiguration\nmetadata: {name: default, %s}\nspec: {}\n",
		world.Pool4, annotations)
	for _, n := range c.Nodes {
		resources += fmt.Sprintf("---\napiVersion: projectcalico.org/v3\nkind: BGPPeer\n"+
			"metadata: {name: tor-%s, %s}\nspec: {node: %s, peerIP: %s, asNumber: 65000}\n",
			n.Name, annotations, n.Name, c.ToR1.Address(n))
	}
	must(t, c.N1.Apply(resources))
	must(t, c.N2.StartManxd(append(lab.UseDatastore(c.N1), "--no-default-pools", "--ip=autodetect")...))
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
		pod, err := n.AddPod(n.Name + "-p1")
		must(t, err)
		c.Pods[n.Name+"-p1"] = pod
	}
	c.bfdUp(t)
	for _, p := range world.Peers(t, c.N1) {
		if want := p.GetAddress() == c.N2.IP4.String(); p.GetBfd().GetMultihop() != want {
			t.Errorf("BFD with %s: multihop %t, want %t", p.GetAddress(), !want, want)
		}
	}
	c.Reachable(t, "n1-p1", "n2-p1")

	p := &pair{cluster: c, flows: &world.Flows{}}
	p.ping(t)
	for _, restarted := range [][]*lab.Node{{c.N2}, {c.N1, c.N2}} {
		for _, n := range restarted {
			n.Manxd().Kill()
		}
		for _, n := range restarted {
			must(t, n.StartManxd())
		}
		for _, n := range restarted {
			must(t, n.Ready(limit))
		}
		c.bfdUp(t)
		p.countLosses(t, fmt.Sprintf("restart of %d nodes with BFD", len(restarted)))
	}
	_, _ = p.flows.Stop(t)

	block := world.Blocks(t, c.N2, "-4")[0]
	gone := func() bool { return len(world.Routes(t, c.N1.Namespace, "-4", block.String())) == 0 }
	if gone() {
		t.Fatalf("n1 has no route to %s", block)
	}
	setCarrier(t, c.ToR1, "p1", "down")
	cut := time.Now()
	for !gone() {
		if time.Since(cut) > limit {
			t.Fatalf("n1 still has a route to %s", block)
		}
		time.Sleep(5 * time.Millisecond)
	}
	took := time.Since(cut)
	t.Logf("n1 has dropped the routes of the node that was cut off after %d ms; its detection time is %d ms",
		took.Milliseconds(), 3*interval.Milliseconds())
	for address, want := range map[netip.Addr]string{c.N2.IP4: "Down", c.ToR1.Address(c.N1): "Up"} {
		if b := world.Peer(t, c.N1, address).GetBfd(); b.GetState() != want {
			t.Errorf("n1: BFD with %s is %s: %s; want %s", address, b.GetState(), b.GetReason(), want)
		}
	}
	setCarrier(t, c.ToR1, "p1", "up")
	c.bfdUp(t)
	c.Reachable(t, "n1-p1", "n2-p1")
}

// setCarrier sets the router's end of a cable up or down.
func setCarrier(t *testing.T, tor *lab.ToR, port, state string) {
	t.Helper()
	if out, err := exec.Command("ip", "-n", tor.Namespace, "link", "set", port, state).CombinedOutput(); err != nil {
		t.Fatalf("link %s %s: %v: %s", port, state, err, out)
	}
}
