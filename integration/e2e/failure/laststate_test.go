package failure

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// awayEnv is how long the datastore is away in TestStartsWithoutTheDatastore, as time.ParseDuration reads it.
const awayEnv = "MANX_DATASTORE_AWAY"

// TestStartsWithoutTheDatastore takes the datastore away from a mesh of three nodes with two routers, of which the
// second has no graceful restart. Meanwhile each daemon is killed twice, and one host is switched off and on. BGP
// starts from the last state: nothing is lost between pods, and from outside only what the second router loses by
// itself.
func TestStartsWithoutTheDatastore(t *testing.T) {
	t.Parallel() // it has a lab of its own, and mostly waits
	away := 2 * time.Minute
	if text := os.Getenv(awayEnv); text != "" {
		var err error
		away, err = time.ParseDuration(text)
		must(t, err)
	}
	c := newWithEtcd(t)
	etcd := startEtcd(t, c)
	c.join(t)
	between, outside, hard := &world.Flows{}, &world.Flows{}, &world.Flows{}
	for from, to := range map[string]string{"n1-p1": "n2-p1", "n3-p1": "n1-p1", "n2-p1": "n3-p1"} {
		c.Flow(t, between, from+" to "+to, c.Pods[from].Namespace, c.Pods[to].IP4())
	}
	for _, to := range []string{"n1-p1", "n3-p1"} {
		c.Flow(t, outside, "tor1 to "+to, c.ToR1.Namespace, c.Pods[to].IP4())
		c.Flow(t, hard, "tor2 to "+to, c.ToR2.Namespace, c.Pods[to].IP4())
	}
	between.Run(t, 20)
	watches := map[*lab.Node]*world.Monitor{}
	for _, n := range c.Nodes {
		watches[n] = world.WatchRoutes(t, n)
	}
	rules := map[*lab.Node]string{}
	for _, n := range c.Nodes {
		rules[n] = ruleset(t, n)
	}

	for _, n := range c.Nodes { // a change is in the last state after a second or two
		block := world.Blocks(t, n, "-4")[0].String()
		eventually(t, func() error {
			content, err := os.ReadFile(filepath.Join(n.Dir, "data", "last-state.json"))
			if err == nil && !strings.Contains(string(content), block) {
				err = fmt.Errorf("the last state of %s has no %s", n.Name, block)
			}
			return err
		})
	}
	etcd.Kill()
	left := time.Now()
	for round := range 2 {
		for _, n := range c.Nodes {
			n.Manxd().Kill()
		}
		for _, n := range c.Nodes {
			must(t, n.StartManxd())
		}
		for _, n := range c.Nodes {
			c.Established(t, n, 4)
		}
		t.Logf("round %d: all sessions are Established %.1f s after the datastore left", round+1,
			time.Since(left).Seconds())
	}
	for _, n := range c.Nodes {
		out, err := n.Manxctl("status")
		if world.ExitCode(err) != 4 {
			t.Errorf("%s: manxctl status should end with 4: %v\n%s", n.Name, err, out)
		}
		world.Contains(t, "manxctl status", world.LineWith(out, "Datastore:"), "not connected",
			"BGP and routes follow the state of 20", " old")
		if now := world.Metric(t, n, "manx_datastore_last_state_in_use"); now != 1 {
			t.Errorf("%s: the metric is %v", n.Name, now)
		}
		world.Contains(t, "manxctl status", out, "has not been read since the start of manxd",
			"no workload can be added")
		if now := ruleset(t, n); now != rules[n] {
			t.Errorf("%s: the rules changed:\n%s\nwere\n%s", n.Name, now, rules[n])
		}
	}
	if _, err := c.N1.AddPod("late"); err == nil {
		t.Error("a pod was attached without a datastore")
	}
	between.Run(t, 20)
	if sent, lost := between.Stop(t); lost > 0 {
		t.Errorf("between pods %d of %d pings lost, want 0", lost, sent)
	}
	c.rebootWithoutDatastore(t)
	c.refusedLastState(t)
	for n, w := range watches {
		if n == c.N2 {
			continue // it was switched off
		}
		if gone := w.Deleted(t); len(gone) > 0 {
			t.Errorf("%s: routes were deleted without the datastore:\n%s", n.Name, strings.Join(gone, "\n"))
		}
	}

	time.Sleep(time.Until(left.Add(away))) // longer than any restart time of a peer
	outside.Run(t, 20)
	before := world.Peers(t, c.N1)
	etcd = startEtcd(t, c)
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
	}
	world.SameSessions(t, before, world.Peers(t, c.N1))
	for _, n := range c.Nodes {
		if now := world.Metric(t, n, "manx_datastore_last_state_in_use"); now != 0 {
			t.Errorf("%s: the metric is %v with the datastore", n.Name, now)
		}
	}
	if _, err := c.N1.AddPod("back"); err != nil {
		t.Errorf("no pod can be added: %v", err)
	}
	if sent, lost := outside.Stop(t); lost > 0 {
		t.Errorf("from the router with graceful restart %d of %d pings lost, want 0", lost, sent)
	}
	sent, lost := hard.Stop(t)
	t.Logf("from the router without graceful restart %d of %d pings lost", lost, sent)
	c.drainedWithoutDatastore(t, etcd)
}

// drainedWithoutDatastore ends the daemon of a drained node at once, as a script of an operator does. The node is still
// drained when it starts without the datastore.
func (c *cluster) drainedWithoutDatastore(t *testing.T, etcd *lab.Process) {
	t.Helper()
	n := c.N3
	block := world.Blocks(t, n, "-4")[0].String()
	out, err := n.Manxctl("node", "drain")
	must(t, err)
	world.Contains(t, "manxctl node drain", out, "routes are withdrawn")
	must(t, n.Manxd().Stop(limit))
	etcd.Kill()
	must(t, n.StartManxd())
	c.Established(t, n, 4)
	eventually(t, func() error {
		if out, err := n.Get("/readyz?verbose"); !strings.Contains(out, "[+]bgp: restart is over") {
			return fmt.Errorf("BGP is not restarted: %w\n%s", err, out)
		}
		return nil
	})
	if r := world.Routes(t, c.ToR1.Namespace, "-4", block); len(r) > 0 {
		t.Errorf("tor1 has a route to the drained node: %v", r)
	}
}

// rebootWithoutDatastore switches n2 off and on. Its pods are gone, its sessions, blocks and routes are back.
func (c *cluster) rebootWithoutDatastore(t *testing.T) {
	t.Helper()
	n := c.N2
	block := world.Blocks(t, n, "-4")[0].String()
	n.Manxd().Kill()
	must(t, n.Renew())
	start := time.Now()
	must(t, n.StartManxd())
	c.Established(t, n, 4)
	t.Logf("after the reboot all sessions are Established in %.1f s", time.Since(start).Seconds())
	eventually(t, func() error {
		if now := world.Blocks(t, n, "-4"); len(now) != 1 || now[0].String() != block {
			return fmt.Errorf("blocks of the host after the reboot: %v, want %s", now, block)
		}
		for _, pod := range []string{"n1-p1", "n3-p1"} {
			if out, err := n.Run("ping", "-c1", "-W1", c.Pods[pod].IP4().String()); err != nil {
				return fmt.Errorf("the host does not reach %s: %w\n%s", pod, err, out)
			}
		}
		if len(world.Routes(t, c.ToR2.Namespace, "-4", block)) == 0 {
			return fmt.Errorf("tor2 has no route to %s", block)
		}
		return nil
	})
}

// refusedLastState restarts n2 with a damaged file: BGP waits, and the reason is shown.
func (c *cluster) refusedLastState(t *testing.T) {
	t.Helper()
	n := c.N2
	file := filepath.Join(n.Dir, "data", "last-state.json")
	content, err := os.ReadFile(file)
	must(t, err)
	n.Manxd().Kill()
	must(t, os.Truncate(file, int64(len(content)-10)))
	must(t, n.StartManxd())
	eventually(t, func() error {
		out, err := n.Manxctl("status")
		if !strings.Contains(out, "BGP waits for the datastore") || !strings.Contains(out, "it is damaged") {
			return fmt.Errorf("the damaged file is no problem: %w\n%s", err, out)
		}
		return nil
	})
	if s := world.Peers(t, n); len(s) > 0 {
		t.Errorf("sessions from a damaged file: %v", s)
	}
	n.Manxd().Kill()
	must(t, os.WriteFile(file, content, 0o600))
	old := time.Now().Add(-2 * time.Hour) // manxd did not run meanwhile: other nodes may have its blocks
	must(t, os.Chtimes(file, old, old))
	must(t, n.StartManxd())
	time.Sleep(3 * time.Second) // longer than a state that is fresh waits
	if s := world.Peers(t, n); len(s) > 0 {
		t.Errorf("sessions from an old file, at once: %v", s)
	}
	n.Manxd().Kill()
	must(t, os.Chtimes(file, time.Now(), time.Now()))
	must(t, n.StartManxd())
	c.Established(t, n, 4)
}

// testEmbeddedBroken restarts the daemon that embeds the datastore while that cannot start, as on a disk that is full.
func (c *cluster) testEmbeddedBroken(t *testing.T) {
	n := c.N1
	f := &world.Flows{}
	c.Flow(t, f, "n2-p1 to n1-p1", c.Pods["n2-p1"].Namespace, c.Pods["n1-p1"].IP4())
	c.Flow(t, f, "tor1 to n1-p1", c.ToR1.Namespace, c.Pods["n1-p1"].IP4())
	f.Run(t, 20)
	folder := filepath.Join(n.Dir, "data", "etcd")
	n.Manxd().Kill()
	must(t, os.Rename(folder, folder+".away"))
	must(t, os.WriteFile(folder, nil, 0o600))
	must(t, n.StartManxd())
	c.Established(t, n, world.Sessions)
	eventually(t, func() error {
		out, _ := n.Manxctl("status")
		for _, want := range []string{"BGP and routes follow the state of", "embedded datastore", folder} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no %q in\n%s", want, out)
			}
		}
		return nil
	})
	must(t, os.Remove(folder))
	must(t, os.Rename(folder+".away", folder))
	c.Settled(t)
	if sent, lost := f.Stop(t); lost > 0 {
		t.Errorf("%d of %d pings lost, want 0", lost, sent)
	}
}

// ruleset is the packet filter of a node, without counters and handles.
func ruleset(t *testing.T, n *lab.Node) string {
	t.Helper()
	out, err := n.Run("nft", "-s", "list", "table", "inet", "manx")
	must(t, err)
	return out
}

// newWithEtcd makes three hosts and two routers for a cluster whose datastore is an etcd beside the first router.
func newWithEtcd(t *testing.T) *cluster {
	t.Helper()
	if _, missing := lab.Require("etcd"); missing != nil {
		t.Skip(missing)
	}
	nodes := []lab.NodeSpec{{Name: "n1"}, {Name: "n2", Rack: 1}, {Name: "n3", Rack: 2}}
	l := world.NewLab(t, lab.Spec{Name: world.LabName("d"), ToRs: 2, HardToRs: 1, Nodes: nodes})
	return &cluster{&world.Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], N3: l.Nodes[2], ToR1: l.ToRs[0],
		ToR2: l.ToRs[1], Pods: map[string]*lab.Pod{}}}
}

// startEtcd runs the etcd of newWithEtcd, again after its end.
func startEtcd(t *testing.T, c *cluster) *lab.Process {
	t.Helper()
	dir := filepath.Join(c.Dir, "etcd")
	must(t, os.MkdirAll(dir, 0o700))
	p, err := c.Start("etcd", dir, namespace.Command(c.ToR1.Namespace, "etcd", "--data-dir="+dir+"/data",
		"--unsafe-no-fsync", "--log-level=error", "--listen-client-urls=http://0.0.0.0:2379",
		"--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380"))
	must(t, err)
	return p
}

// join makes the hosts of newWithEtcd nodes that have a pod each, and sessions with each other and with both routers.
func (c *cluster) join(t *testing.T) {
	t.Helper()
	docs := []string{fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods4}\n"+
		"spec: {cidr: %s, blockSize: 28, ipipMode: Never, natOutgoing: false}\n", world.Pool4)}
	for _, n := range c.Nodes {
		must(t, n.StartManxd("--datastore=etcdv3", "--etcd-endpoints=http://"+c.ToR1.Address(n).String()+":2379",
			"--no-default-pools", "--ip=autodetect", "--ip-autodetection-method=interface=eth0"))
		docs = append(docs, world.TorPeer(n, "tor1-"+n.Name, c.ToR1.Address(n), ""),
			world.TorPeer(n, "tor2-"+n.Name, c.ToR2.Address(n), "None"))
	}
	must(t, c.N1.Ready(limit))
	must(t, c.N1.Apply(strings.Join(docs, "---")))
	for _, n := range c.Nodes {
		must(t, n.Ready(limit))
		p, err := n.AddPod(n.Name + "-p1")
		must(t, err)
		c.Pods[n.Name+"-p1"] = p
		c.Established(t, n, 4)
	}
	for _, pair := range [][2]string{{"n1-p1", "n2-p1"}, {"n2-p1", "n3-p1"}, {"n3-p1", "n1-p1"}} {
		c.Reachable(t, pair[0], pair[1])
	}
}
