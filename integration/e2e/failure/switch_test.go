package failure

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// pair is two nodes in two racks, with a pod each, and pings between them and from the router that run on while daemons
// come and go.
type pair struct {
	*cluster
	flows *world.Flows
}

func newPair(t *testing.T, prefix string) *pair {
	t.Helper()
	l := world.NewLab(t, lab.Spec{Name: world.LabName(prefix), Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2",
		Rack: 1}}})
	c := &cluster{&world.Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], ToR1: l.ToRs[0], Pods: map[string]*lab.Pod{}}}
	must(t, c.N1.StartManxd(append(c.N1.EmbedDatastore(), "--no-default-pools", "--ip=autodetect")...))
	must(t, c.N1.Ready(limit))
	must(t, c.N1.Apply(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}\n---\n", world.Pool4)+
		world.TorPeer(c.N1, "tor-n1", c.ToR1.Address(c.N1), "")+"---"+world.TorPeer(c.N2, "tor-n2",
		c.ToR1.Address(c.N2), "")))
	must(t, c.N2.StartManxd(append(lab.UseDatastore(c.N1), "--no-default-pools", "--ip=autodetect")...))
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
		p, err := n.AddPod(n.Name + "-p1")
		must(t, err)
		c.Pods[n.Name+"-p1"] = p
	}
	for _, n := range c.Nodes {
		c.Established(t, n, 2)
	}
	c.Reachable(t, "n1-p1", "n2-p1")
	p := &pair{cluster: c, flows: &world.Flows{}}
	p.ping(t)
	return p
}

// ping starts new pings.
func (p *pair) ping(t *testing.T) {
	t.Helper()
	p.flows = &world.Flows{}
	p.Flow(t, p.flows, "n1-p1 to n2-p1", p.Pods["n1-p1"].Namespace, p.Pods["n2-p1"].IP4())
	p.Flow(t, p.flows, "n2-p1 to n1-p1", p.Pods["n2-p1"].Namespace, p.Pods["n1-p1"].IP4())
	p.Flow(t, p.flows, "tor1 to n2-p1", p.ToR1.Namespace, p.Pods["n2-p1"].IP4())
	p.flows.Run(t, 20)
}

// countLosses waits for more answers, counts the losses since ping and starts new pings.
func (p *pair) countLosses(t *testing.T, what string) {
	t.Helper()
	p.flows.Run(t, 30)
	sent, lost := p.flows.Stop(t)
	if lost > 0 {
		t.Errorf("%s: %d of %d pings lost, want 0", what, lost, sent)
	} else {
		t.Logf("%s: 0 of %d pings lost", what, sent)
	}
	p.ping(t)
}

// birdNode runs BIRD on a node in the place of manxd, set up as calico/node sets it up.
type birdNode struct {
	n      *lab.Node
	cmd    *exec.Cmd
	socket string
}

// startBIRD gives kernel routes this metric; releases of calico/node differ in it.
func (p *pair) startBIRD(t *testing.T, n, other *lab.Node, metric int) *birdNode {
	t.Helper()
	var statics strings.Builder
	for _, b := range world.Blocks(t, n, "-4") {
		fmt.Fprintf(&statics, "  route %s blackhole;\n", b)
	}
	conf := fmt.Sprintf(`
log stderr all;
router id %[1]s;
protocol device { scan time 2; }
protocol direct { ipv4; interface -"cali*", "*"; }
protocol static own { ipv4;
%[2]s}
protocol kernel { learn; persist; scan time 2; metric %[3]d; merge paths on; graceful restart; ipv4 { import all; export where source = RTS_BGP || proto = "own"; }; }
filter blocks { if proto = "own" then { bgp_local_pref = 2147482623; accept; } reject; }
template bgp calico { local %[1]s as 64512; multihop; graceful restart; connect delay time 2; connect retry time 5; error wait time 5, 30;
  ipv4 { import all; export filter blocks; gateway recursive; add paths on; }; }
protocol bgp Mesh from calico { neighbor %[4]s as 64512; }
protocol bgp Node from calico { neighbor %[5]s as 65000; }
`, n.IP4, statics.String(), metric, other.IP4, p.ToR1.Address(n))
	file := filepath.Join(n.Dir, "calico-bird.conf")
	must(t, os.WriteFile(file, []byte(conf), 0o644))
	log, err := os.Create(filepath.Join(n.Dir, "calico-bird.log"))
	must(t, err)
	b := &birdNode{n: n, socket: filepath.Join(n.Dir, "calico-bird.ctl")}
	b.cmd = namespace.Command(n.Namespace, "bird", "-f", "-R", "-c", file, "-s", b.socket)
	b.cmd.Stdout, b.cmd.Stderr = log, log
	must(t, b.cmd.Start())
	t.Cleanup(func() {
		b.kill()
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("end of the log of BIRD on %s:\n%s", n.Name, world.Tail(string(text), 40))
		}
	})
	eventually(t, func() error {
		out, err := exec.Command("birdc", "-s", b.socket, "show", "protocols").CombinedOutput()
		if up := strings.Count(string(out), "Established"); up != 2 {
			return fmt.Errorf("BIRD on %s has %d sessions up, want 2: %v\n%s", n.Name, up, err, out)
		}
		return nil
	})
	return b
}

// recovered waits until BIRD's graceful restart is over, on its side and on the router's: peers drop the routes of a
// speaker that goes again before it has sent them (RFC 4724 section 4.2).
func (p *pair) recovered(t *testing.T, b *birdNode) {
	t.Helper()
	eventually(t, func() error {
		out, err := exec.Command("birdc", "-s", b.socket, "show", "status").CombinedOutput()
		if err != nil || strings.Contains(string(out), "recovery in progress") {
			return fmt.Errorf("BIRD on %s: %v\n%s", b.n.Name, err, out)
		}
		text, err := p.ToR1.Birdc("show", "protocols", "all", b.n.Name)
		if err != nil || strings.Contains(text, "Neighbor graceful restart active") {
			return fmt.Errorf("BIRD on %s: %v\n%s", p.ToR1.Name, err, text)
		}
		return nil
	})
}

func (b *birdNode) kill() {
	_ = b.cmd.Process.Kill()
	_ = b.cmd.Wait()
}

// TestSwitchBetweenManxAndBIRD moves a node from Manx to BIRD, as calico/node runs it, and back, while packets flow.
func TestSwitchBetweenManxAndBIRD(t *testing.T) {
	t.Parallel() // it has a lab of its own, and mostly waits
	p := newPair(t, "w")
	other := world.Blocks(t, p.N1, "-4")[0].String()
	for _, metric := range []int{1024, 0} { // as releases with and without route priorities have it
		t.Run(fmt.Sprintf("metric %d", metric), func(t *testing.T) {
			must(t, p.N2.Manxd().Stop(limit))
			bird := p.startBIRD(t, p.N2, p.N1, metric)
			p.Established(t, p.N1, 2)
			p.recovered(t, bird)
			p.countLosses(t, "from Manx to BIRD")
			eventually(t, func() error {
				for _, r := range world.Routes(t, p.N2.Namespace, "-4", other, "proto", "12") {
					if r.Metric == uint32(metric) {
						return nil
					}
				}
				return fmt.Errorf("BIRD has not installed %s with metric %d: %+v", other, metric,
					world.Routes(t, p.N2.Namespace, "-4"))
			})
			watch := world.WatchRoutes(t, p.N2)
			bird.kill()
			must(t, p.N2.StartManxd())
			must(t, p.N2.Ready(limit))
			for _, n := range p.Nodes {
				p.Established(t, n, 2)
			}
			p.countLosses(t, "from BIRD to Manx")
			eventually(t, func() error {
				if r := world.Routes(t, p.N2.Namespace, "-4", other); len(r) != 1 || r[0].Metric != 1024 {
					return fmt.Errorf("routes for %s: %+v, want one of metric 1024", other, r)
				}
				return nil
			})
			for _, line := range watch.Deleted(t) {
				if metric == 1024 && strings.Contains(line, other) {
					t.Errorf("a route was deleted although BIRD's were as wanted: %s", line)
				}
			}
			p.countLosses(t, "after leftovers were tidied up")
		})
	}
}

// TestGracefulRestart restarts daemons in all the ways of maintenance.
func TestGracefulRestart(t *testing.T) {
	t.Parallel() // it has a lab of its own, and mostly waits
	p := newPair(t, "g")
	back := func(t *testing.T, nodes ...*lab.Node) {
		t.Helper()
		for _, n := range nodes {
			must(t, n.Ready(limit))
		}
		for _, n := range p.Nodes {
			p.Established(t, n, 2)
		}
	}
	t.Run("again and again", func(t *testing.T) {
		for range 3 {
			p.N2.Manxd().Kill()
			must(t, p.N2.StartManxd())
			back(t, p.N2)
		}
		p.countLosses(t, "three restarts, each when the one before was over")
	})
	t.Run("before the last restart is over", func(t *testing.T) {
		for range 3 {
			p.N2.Manxd().Kill()
			must(t, p.N2.StartManxd())
			time.Sleep(700 * time.Millisecond) // before, while and after its sessions come up
		}
		back(t, p.N2)
		p.flows.Run(t, 30)
		// Peers drop the routes of a speaker that goes again before it has sent them (RFC 4724 section 4.2).
		sent, lost := p.flows.Stop(t)
		t.Logf("three restarts within some seconds: %d of %d pings lost", lost, sent)
		p.ping(t)
	})
	t.Run("both ends", func(t *testing.T) {
		p.N1.Manxd().Kill()
		p.N2.Manxd().Kill()
		must(t, p.N1.StartManxd())
		must(t, p.N2.StartManxd())
		back(t, p.N1, p.N2)
		p.countLosses(t, "restart of both ends")
	})
	t.Run("the router too", func(t *testing.T) {
		p.N2.Manxd().Kill()
		p.ToR1.BIRD().Kill()
		must(t, p.ToR1.StartBIRD("-R"))
		must(t, p.N2.StartManxd())
		back(t, p.N2)
		p.countLosses(t, "restart of node and router")
	})
	t.Run("without datastore", func(t *testing.T) {
		p.N1.Manxd().Kill() // it holds the datastore
		p.N2.Manxd().Kill()
		must(t, p.N2.StartManxd())
		eventually(t, func() error {
			if !strings.Contains(p.N2.Log(), "waiting for the datastore") {
				return fmt.Errorf("manxd on n2 does not wait for the datastore")
			}
			return nil
		})
		p.flows.Run(t, 100)
		must(t, p.N1.StartManxd())
		back(t, p.N1, p.N2)
		p.countLosses(t, "restart while the datastore is down")
	})
}

// TestReboot removes the state that a reboot removes from a node, and starts the node again.
func TestReboot(t *testing.T) {
	p := newPair(t, "o")
	p.N2.Manxd().Kill()
	must(t, p.Pods["n2-p1"].Delete()) // pods do not outlive the machine
	for _, family := range []string{"-4", "-6"} {
		for _, proto := range []string{"12", "80"} {
			if out, err := p.N2.Run("ip", family, "route", "flush", "proto", proto); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	world.IP(t, p.N2, "link set eth0 down")
	must(t, os.RemoveAll(filepath.Join(p.N2.Dir, "run")))
	gateway := p.ToR1.Address(p.N2)
	world.IP(t, p.N2, "link set eth0 up")
	if out, _ := p.N2.Run("ip", "route", "show", "default"); out == "" {
		world.IP(t, p.N2, "route add default via "+gateway.String())
	}
	must(t, p.N2.StartManxd())
	must(t, p.N2.Ready(limit))
	pod, err := p.N2.AddPod("n2-p2")
	must(t, err)
	p.Pods["n2-p2"] = pod
	for _, n := range p.Nodes {
		p.Established(t, n, 2)
	}
	p.Reachable(t, "n1-p1", "n2-p2")
	p.Reachable(t, "n2-p2", "n1-p1")
	if r := world.Routes(t, p.N2.Namespace, "-4", "type", "blackhole"); len(r) == 0 {
		t.Error("the node's block has no blackhole route after the reboot")
	}
	sent, lost := p.flows.Stop(t)
	t.Logf("%d of %d pings to and from the pod that the reboot ended, and the rest, lost", lost, sent)
}
