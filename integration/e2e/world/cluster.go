package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/integration/lab"
)

// The addresses of pods.
var (
	pool4 = netip.MustParsePrefix("10.244.0.0/16")
	pool6 = netip.MustParsePrefix("fd00:244::/64")
)

// limit is how long anything may take on a machine that has much else to do. Nothing is asserted about time.
const limit = time.Minute

// newLab builds a lab that goes away with the test; when the test fails, the ends of the daemons' logs are printed.
func newLab(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	spec.Bin = binaries(t)
	l, err := lab.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes {
				t.Logf("end of the log of manxd on %s:\n%s", n.Name, tail(n.Log(), 30))
			}
			if !spec.PlainRouters {
				for _, tor := range l.ToRs {
					t.Logf("end of the log of BIRD on %s:\n%s", tor.Name, tail(tor.Log(), 60))
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// binaries is the folder of the built programs; the test is skipped without them.
func binaries(t *testing.T) string {
	t.Helper()
	bin, missing := lab.Require("ip", "ping", "bird", "birdc")
	if missing != nil {
		t.Skip(missing)
	}
	return bin
}

func labName(prefix string) string { return fmt.Sprintf("%s%d", prefix, os.Getpid()%1e6) }

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// cluster is the data centre that the tests of TestCluster share, one after the other: two nodes in one rack, the
// first of which embeds the datastore, one in another rack, IPv4 and IPv6, and two routers.
type cluster struct {
	*lab.Lab
	n1, n2, n3 *lab.Node
	tor1, tor2 *lab.ToR
	pods       map[string]*lab.Pod
	etcd       *clientv3.Client
}

// sessions that each node has: with the other two and with both routers, for IPv4 and IPv6.
const sessions = 8

func newCluster(t *testing.T) *cluster {
	t.Helper()
	start := time.Now()
	l := newLab(t, lab.Spec{Name: labName("e"), IPv6: true, ToRs: 2,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}, {Name: "n3", Rack: 1}}})
	c := &cluster{Lab: l, n1: l.Nodes[0], n2: l.Nodes[1], n3: l.Nodes[2], tor1: l.ToRs[0], tor2: l.ToRs[1],
		pods: map[string]*lab.Pod{}}
	flags := []string{"--no-default-pools", "--ip=autodetect", "--ip6=autodetect",
		"--ip-autodetection-method=interface=eth0", "--ip6-autodetection-method=interface=eth0"}
	must(t, c.n1.StartManxd(append(c.n1.EmbedDatastore(), flags...)...))
	must(t, c.n1.Ready(limit))
	must(t, c.n1.Apply(c.resources()))
	for _, n := range c.Nodes[1:] {
		must(t, n.StartManxd(append(lab.UseDatastore(c.n1), append(flags, "--bgp-password-dir="+secrets(n),
			"--bird-socket="+birdSocket(n))...)...))
	}
	c.etcd = dialEtcd(t, c.n1)
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
		for i := range 2 {
			c.addPod(t, n, fmt.Sprintf("%s-p%d", n.Name, i+1))
		}
	}
	c.settled(t)
	t.Logf("a cluster of 3 nodes, 2 routers, 6 pods with IPv4 and IPv6 works after %.1f s", time.Since(start).Seconds())
	return c
}

// secrets is the folder of a node's BGP passwords.
func secrets(n *lab.Node) string { return filepath.Join(n.Dir, "secrets") }

// resources are what the operator stores: a pool for each family, and both routers as peers of each node. The second
// router is only reachable through the second uplink, so the kernel chooses the source address.
func (c *cluster) resources() string {
	docs := []string{fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods4}
spec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods6}
spec: {cidr: "%s", blockSize: 124, natOutgoing: false}
`, pool4, pool6)}
	for _, n := range c.Nodes {
		docs = append(docs,
			torPeer(n, "tor1-"+n.Name, c.tor1.Address(n), ""), torPeer(n, "tor1v6-"+n.Name, c.tor1.Address6(n), ""),
			torPeer(n, "tor2-"+n.Name, c.tor2.Address(n), "None"), torPeer(n, "tor2v6-"+n.Name, c.tor2.Address6(n),
				"None"))
	}
	return strings.Join(docs, "---")
}

func torPeer(n *lab.Node, name string, address netip.Addr, source string) string {
	if source != "" {
		source = ", sourceAddress: " + source
	}
	return fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: %s}
spec: {node: %s, peerIP: "%s", asNumber: 65000%s}
`, name, n.Name, address, source)
}

func (c *cluster) addPod(t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.AddPod(name, lab.DualStack)
	must(t, err)
	c.pods[name] = p
	return p
}

// settled waits until every node is ready, has all its sessions, and the pods reach each other.
func (c *cluster) settled(t *testing.T) {
	t.Helper()
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
		c.established(t, n, sessions)
	}
	c.reachable(t, "n1-p1", "n2-p1")
	c.reachable(t, "n2-p1", "n3-p1")
	c.reachable(t, "n3-p1", "n1-p1")
}

// established waits until a node has this many sessions, all of them established.
func (c *cluster) established(t *testing.T, n *lab.Node, want int) {
	t.Helper()
	eventually(t, func() error {
		up := 0
		var down []string
		for _, p := range peers(t, n) {
			if p.GetState() == "Established" {
				up++
			} else {
				down = append(down, fmt.Sprintf("%s %s: %s", p.GetAddress(), p.GetState(), p.GetReason()))
			}
		}
		if up != want || len(down) > 0 {
			return fmt.Errorf("%s: want %d established sessions, have %d; down: %v", n.Name, want, up, down)
		}
		return nil
	})
}

// reachable waits until one pod reaches another with IPv4 and IPv6.
func (c *cluster) reachable(t *testing.T, from, to string) {
	t.Helper()
	for _, a := range c.pods[to].IPs {
		eventually(t, func() error {
			if err := lab.Ping(c.pods[from].Namespace, a); err != nil {
				return fmt.Errorf("%s does not reach %s: %w", from, to, err)
			}
			return nil
		})
	}
}

// flows are running pings between namespaces.
type flows struct {
	all  []*lab.Flow
	name []string
}

func (c *cluster) flow(t *testing.T, f *flows, name, ns string, to netip.Addr) {
	t.Helper()
	flow, err := c.StartFlow(ns, to)
	must(t, err)
	f.all, f.name = append(f.all, flow), append(f.name, name)
}

// run waits until each flow has had that many more answers.
func (f *flows) run(t *testing.T, answers int) {
	t.Helper()
	want := make([]int, len(f.all))
	for i, flow := range f.all {
		want[i] = flow.Answered() + answers
	}
	eventually(t, func() error {
		for i, flow := range f.all {
			if flow.Answered() < want[i] {
				return fmt.Errorf("%s: %d answers, want %d", f.name[i], flow.Answered(), want[i])
			}
		}
		return nil
	})
}

// stop ends the flows and returns how many pings were sent and lost.
func (f *flows) stop(t *testing.T) (sent, lost int) {
	t.Helper()
	for i, flow := range f.all {
		s, l, err := flow.Stop()
		if err != nil {
			t.Errorf("%s: %v", f.name[i], err)
		}
		if l > 0 {
			t.Logf("%s: %d of %d pings lost", f.name[i], l, s)
		}
		sent, lost = sent+s, lost+l
	}
	return sent, lost
}

func dialEtcd(t *testing.T, n *lab.Node) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{n.EtcdSocket()}, DialTimeout: limit})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// put writes a raw value into the datastore and returns the revision.
func (c *cluster) put(t *testing.T, key, value string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := c.etcd.Put(ctx, key, value)
	must(t, err)
	return r.Header.Revision
}

// raw reads all values below a key.
func (c *cluster) raw(t *testing.T, prefix string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := c.etcd.Get(ctx, prefix, clientv3.WithPrefix())
	must(t, err)
	all := map[string]string{}
	for _, kv := range r.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, check func() error) {
	t.Helper()
	must(t, lab.Eventually(limit, check))
}

// TestCluster runs the tests that share one cluster. Each leaves it as it found it.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	for _, test := range []struct {
		name string
		run  func(*cluster, *testing.T)
	}{
		{"pods reach each other and the routers over IPv4 and IPv6", (*cluster).testDualStack},
		{"a released block is withdrawn", (*cluster).testReleasedBlock},
		{"two uplinks make two next hops", (*cluster).testUplinks},
		{"the status commands tell how the node is", (*cluster).testStatus},
		{"BIRD's clients are answered", (*cluster).testBIRDSocket},
		{"a drained node leaves the network and comes back", (*cluster).testDrain},
		{"services are announced and not installed", (*cluster).testServices},
		{"CalicoNodeStatus objects are filled in", (*cluster).testNodeStatus},
		{"a plan from files is what the daemons do", (*cluster).testPlan},
		{"thirty pods at once", (*cluster).testManyPods},
		{"what was changed by hand is repaired", (*cluster).testDrift},
		{"wrong peers are told why", (*cluster).testWrongPeers},
		{"garbage in the datastore concerns nothing else", (*cluster).testGarbage},
		{"a second daemon is refused", (*cluster).testTwin},
		{"the datastore goes away and comes back", (*cluster).testOutage},
		{"a restart adopts the routes and prunes leftovers once in sync", (*cluster).testRestart},
	} {
		ok := t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			test.run(c, t)
			t.Logf("took %.1f s", time.Since(start).Seconds())
		})
		if !ok {
			break // what follows would fail because of it
		}
	}
}
