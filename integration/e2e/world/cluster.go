package world

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/manxnet/manx/integration/lab"
)

// The addresses of pods.
var (
	Pool4 = netip.MustParsePrefix("10.244.0.0/16")
	Pool6 = netip.MustParsePrefix("fd00:244::/64")
)

// Limit is the longest time for any step on a busy machine. No test asserts a time.
const Limit = time.Minute

// NewLab builds a lab that is removed with the test. When the test fails, the ends of the daemons' logs are printed.
func NewLab(t *testing.T, spec lab.Spec) *lab.Lab {
	t.Helper()
	spec.Bin = Binaries(t)
	l, err := lab.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range l.Nodes {
				t.Logf("end of the log of manxd on %s:\n%s", n.Name, Tail(n.Log(), 30))
			}
			if !spec.PlainRouters {
				for _, tor := range l.ToRs {
					t.Logf("end of the log of BIRD on %s:\n%s", tor.Name, Tail(tor.Log(), 60))
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// Binaries is the folder of the built programs; the test is skipped without them.
func Binaries(t *testing.T) string {
	t.Helper()
	bin, missing := lab.Require("ip", "ping", "bird", "birdc")
	if missing != nil {
		t.Skip(missing)
	}
	return bin
}

func LabName(prefix string) string { return fmt.Sprintf("%s%d", prefix, os.Getpid()%1e6) }

func Tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Cluster is a data centre. That of NewCluster, which tests share one after the other, has two nodes in one rack, the
// first of which embeds the datastore, one in another rack, IPv4 and IPv6, and two routers.
type Cluster struct {
	*lab.Lab
	N1, N2, N3 *lab.Node
	ToR1, ToR2 *lab.ToR
	Pods       map[string]*lab.Pod
	Etcd       *clientv3.Client
}

// Sessions that each node has: with the other two and with both routers, for IPv4 and IPv6.
const Sessions = 8

func NewCluster(t *testing.T) *Cluster {
	t.Helper()
	start := time.Now()
	l := NewLab(t, lab.Spec{Name: LabName("e"), IPv6: true, ToRs: 2,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}, {Name: "n3", Rack: 1}}})
	c := &Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], N3: l.Nodes[2], ToR1: l.ToRs[0], ToR2: l.ToRs[1],
		Pods: map[string]*lab.Pod{}}
	flags := []string{"--no-default-pools", "--ip=autodetect", "--ip6=autodetect",
		"--ip-autodetection-method=interface=eth0", "--ip6-autodetection-method=interface=eth0"}
	Must(t, c.N1.StartManxd(append(c.N1.EmbedDatastore(), flags...)...))
	Must(t, c.N1.Ready(Limit))
	Must(t, c.N1.Apply(c.resources()))
	for _, n := range c.Nodes[1:] {
		Must(t, n.StartManxd(append(lab.UseDatastore(c.N1), append(flags, "--bgp-password-dir="+Secrets(n))...)...))
	}
	Must(t, c.N2.StartBirdsock(BIRDSocket(c.N2)))
	c.Etcd = DialEtcd(t, c.N1)
	for _, n := range c.Nodes {
		Must(t, n.Ready(Limit))
		for i := range 2 {
			c.AddPod(t, n, fmt.Sprintf("%s-p%d", n.Name, i+1))
		}
	}
	c.Settled(t)
	t.Logf("a cluster of 3 nodes, 2 routers, 6 pods with IPv4 and IPv6 works after %.1f s", time.Since(start).Seconds())
	return c
}

// Secrets is the folder of a node's BGP passwords.
func Secrets(n *lab.Node) string { return filepath.Join(n.Dir, "secrets") }

// resources are the operator's objects: a pool for each family, and both routers as peers of each node. The second
// router is only reachable through the second uplink, so the kernel chooses the source address.
func (c *Cluster) resources() string {
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
`, Pool4, Pool6)}
	for _, n := range c.Nodes {
		docs = append(docs,
			TorPeer(n, "tor1-"+n.Name, c.ToR1.Address(n), ""), TorPeer(n, "tor1v6-"+n.Name, c.ToR1.Address6(n), ""),
			TorPeer(n, "tor2-"+n.Name, c.ToR2.Address(n), "None"), TorPeer(n, "tor2v6-"+n.Name, c.ToR2.Address6(n),
				"None"))
	}
	return strings.Join(docs, "---")
}

func TorPeer(n *lab.Node, name string, address netip.Addr, source string) string {
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

func (c *Cluster) AddPod(t *testing.T, n *lab.Node, name string) *lab.Pod {
	t.Helper()
	p, err := n.AddPod(name, lab.DualStack)
	Must(t, err)
	c.Pods[name] = p
	return p
}

// Settled waits until every node is ready, has all its sessions, and the pods reach each other.
func (c *Cluster) Settled(t *testing.T) {
	t.Helper()
	for _, n := range c.Nodes {
		Must(t, n.Ready(Limit))
		c.Established(t, n, Sessions)
	}
	c.Reachable(t, "n1-p1", "n2-p1")
	c.Reachable(t, "n2-p1", "n3-p1")
	c.Reachable(t, "n3-p1", "n1-p1")
}

// Established waits until a node has this many sessions, all of them established.
func (c *Cluster) Established(t *testing.T, n *lab.Node, want int) {
	t.Helper()
	Eventually(t, func() error {
		up := 0
		var down []string
		for _, p := range Peers(t, n) {
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

// Reachable waits until one pod reaches another with IPv4 and IPv6.
func (c *Cluster) Reachable(t *testing.T, from, to string) {
	t.Helper()
	for _, a := range c.Pods[to].IPs {
		Eventually(t, func() error {
			if err := lab.Ping(c.Pods[from].Namespace, a); err != nil {
				return fmt.Errorf("%s does not reach %s: %w", from, to, err)
			}
			return nil
		})
	}
}

// Flows are running pings between namespaces.
type Flows struct {
	All  []*lab.Flow
	Name []string
}

func (c *Cluster) Flow(t *testing.T, f *Flows, name, ns string, to netip.Addr) {
	t.Helper()
	flow, err := c.StartFlow(ns, to)
	Must(t, err)
	f.All, f.Name = append(f.All, flow), append(f.Name, name)
}

// Run waits until each flow has received this many more replies.
func (f *Flows) Run(t *testing.T, answers int) {
	t.Helper()
	want := make([]int, len(f.All))
	for i, flow := range f.All {
		want[i] = flow.Answered() + answers
	}
	Eventually(t, func() error {
		for i, flow := range f.All {
			if flow.Answered() < want[i] {
				return fmt.Errorf("%s: %d answers, want %d", f.Name[i], flow.Answered(), want[i])
			}
		}
		return nil
	})
}

// Stop ends the flows and returns how many pings were sent and lost.
func (f *Flows) Stop(t *testing.T) (sent, lost int) {
	t.Helper()
	for i, flow := range f.All {
		s, l, err := flow.Stop()
		if err != nil {
			t.Errorf("%s: %v", f.Name[i], err)
		}
		if l > 0 {
			t.Logf("%s: %d of %d pings lost", f.Name[i], l, s)
		}
		sent, lost = sent+s, lost+l
	}
	return sent, lost
}

func DialEtcd(t *testing.T, n *lab.Node) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{n.EtcdSocket()}, DialTimeout: Limit})
	Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Put writes a raw value into the datastore and returns the revision.
func (c *Cluster) Put(t *testing.T, key, value string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	defer cancel()
	r, err := c.Etcd.Put(ctx, key, value)
	Must(t, err)
	return r.Header.Revision
}

// Raw reads all values below a key.
func (c *Cluster) Raw(t *testing.T, prefix string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	defer cancel()
	r, err := c.Etcd.Get(ctx, prefix, clientv3.WithPrefix())
	Must(t, err)
	all := map[string]string{}
	for _, kv := range r.Kvs {
		all[string(kv.Key)] = string(kv.Value)
	}
	return all
}

func Must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func Eventually(t *testing.T, check func() error) {
	t.Helper()
	Must(t, lab.Eventually(Limit, check))
}

// Step is a test of several that share something of type T.
type Step[T any] struct {
	Name string
	Run  func(T, *testing.T)
}

// InOrder runs the tests one after the other, up to the first that fails: later ones would fail because of it.
func InOrder[T any](t *testing.T, shared T, steps []Step[T]) {
	t.Helper()
	for _, step := range steps {
		ok := t.Run(step.Name, func(t *testing.T) {
			start := time.Now()
			step.Run(shared, t)
			t.Logf("took %.1f s", time.Since(start).Seconds())
		})
		if !ok {
			break
		}
	}
}

// BIRDSocket returns the socket of a node for clients of BIRD for IPv4.
func BIRDSocket(n *lab.Node) string { return filepath.Join(n.Dir, "bird.ctl") }

func BIRDSocket6(n *lab.Node) string { return filepath.Join(n.Dir, "bird6.ctl") }

// ResourceKeys is the prefix of the keys of Calico's resources, and EndpointKeys that of workload endpoints.
const (
	ResourceKeys = "/calico/resources/v3/projectcalico.org/"
	EndpointKeys = ResourceKeys + "workloadendpoints/"
)

// Nobody is the unprivileged user and group.
const Nobody = 65534

// Parallel runs f for 0 to n-1, all at once.
func Parallel(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// GlobalPolicy is a GlobalNetworkPolicy.
func GlobalPolicy(name, spec string) string { return Resource("GlobalNetworkPolicy", name, spec) }

// Resource is an object of Calico's API without a namespace. spec are the fields, as in braces.
func Resource(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: %s\nmetadata: {name: %s}\nspec: {%s}\n---\n", kind,
		name, spec)
}
