package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

const resourceKeys = "/calico/resources/v3/projectcalico.org/"

// testGarbage writes what no client of Calico would, at keys of every kind that the daemon watches.
func (c *cluster) testGarbage(t *testing.T) {
	n := c.n2
	before, sessionsBefore := measure(t, n), peers(t, n)
	watch := watchRoutes(t, n)
	defer watch.stop()

	valid := c.raw(t, "/calico/")
	written := 0
	for kind, key := range map[string]string{
		"nodes": "nodes/bad%d", "ippools": "ippools/bad%d", "bgpconfigurations": "bgpconfigurations/node.bad%d",
		"bgppeers":            "bgppeers/bad%d",
		"clusterinformations": "clusterinformations/bad%d", "felixconfigurations": "felixconfigurations/node.bad%d",
		"workloadendpoints": "workloadendpoints/default/n2-k8s-bad%d-eth0",
	} {
		for i, value := range garbage(valid, resourceKeys+kind+"/") {
			c.put(t, resourceKeys+fmt.Sprintf(key, i), value)
			written++
		}
	}
	for i, value := range garbage(valid, "/calico/ipam/v2/host/") {
		c.put(t, fmt.Sprintf("/calico/ipam/v2/host/n2/ipv4/block/198.18.%d.0-28", i), value)
		written++
	}
	// Keys that are none, in ranges that are watched.
	c.put(t, "/calico/ipam/v2/host/n2/ipv4/block/not-a-block", "{}")
	c.put(t, resourceKeys+"workloadendpoints/too/many/slashes", "{}")
	last := c.put(t, resourceKeys+"nodes/", "{}")
	written += 3
	c.seen(t, n, last)

	out, err := n.Manxctl("status")
	must(t, err)
	contains(t, "manxctl status", out, "cannot be used", "8 sessions: 8 Established", "Health:     ok")
	t.Log(lineWith(out, "cannot be used"))
	out, err = n.Manxctl("node", "problems")
	must(t, err)
	for _, kind := range []string{"Node", "IPPool", "BGPConfiguration", "BGPPeer", "ClusterInformation",
		"FelixConfiguration", "WorkloadEndpoint", "BlockAffinity"} {
		if lineWith(out, kind+" ") == "" {
			t.Errorf("manxctl node problems names no %s:\n%s", kind, out)
		}
	}
	t.Logf("%d bad values written, %d lines in manxctl node problems, for instance: %s", written,
		strings.Count(out, "\n")-1, lineWith(out, "BGPPeer"))

	for key := range c.raw(t, "/calico/") {
		if _, ok := valid[key]; !ok {
			_, err := c.etcd.Delete(t.Context(), key)
			must(t, err)
		}
	}
	c.seen(t, n, c.put(t, resourceKeys+"nodes/n3", valid[resourceKeys+"nodes/n3"]))
	if r, err := ask(t, n, manxv1.ManxClient.ListQuarantined, &manxv1.ListQuarantinedRequest{}); err != nil ||
		len(r.GetObjects()) > 0 {
		t.Errorf("still in quarantine: %v, %v", r.GetObjects(), err)
	}
	sameSessions(t, sessionsBefore, peers(t, n))
	for _, gone := range watch.deleted(t) {
		// An affinity without a state counts, so some of the values made a blackhole.
		if !strings.Contains(gone, "Deleted blackhole 198.18.") {
			t.Errorf("a route was deleted meanwhile: %s", gone)
		}
	}
	c.truncated(t, n, valid)
	c.settled(t)
	stable(t, n, before)
}

// garbage are values that no object has, among them the pieces of one that exists below prefix.
func garbage(valid map[string]string, prefix string) []string {
	values := []string{"", "{", "null", "[]", "0", `"text"`, "\x00\xff\xfe", `{"kind":"Nonsense"}`, `{"spec":[]}`,
		strings.Repeat("[", 20000),
		`{"metadata":{"name":7},"spec":{"cidr":"x","peerIP":{},"asNumber":-1,"bgp":"y","node":[]}}`}
	for key, v := range valid {
		if strings.HasPrefix(key, prefix) && len(v) > 2 {
			return append(values, v[:len(v)/3], v[:len(v)/2], v[:len(v)-1])
		}
	}
	return values
}

// truncated cuts off objects that are in use, one after the other, and restores them. Their last valid version stays in
// use, so that nothing is disturbed.
func (c *cluster) truncated(t *testing.T, n *lab.Node, valid map[string]string) {
	for _, key := range []string{"ippools/pods4", "bgppeers/tor1-n2", "nodes/n3", "nodes/n2"} {
		value := valid[resourceKeys+key]
		if value == "" {
			t.Fatalf("no %s in the datastore", key)
		}
		before := peers(t, n)
		c.seen(t, n, c.put(t, resourceKeys+key, value[:len(value)/2]))
		out, err := n.Manxctl("node", "problems")
		must(t, err)
		contains(t, "manxctl node problems", out, key[strings.Index(key, "/")+1:], "stays in use")
		sameSessions(t, before, peers(t, n))
		c.seen(t, n, c.put(t, resourceKeys+key, value))
		c.settled(t)
		sameSessions(t, before, peers(t, n))
	}
}

// seen waits until a node has read the datastore up to a revision.
func (c *cluster) seen(t *testing.T, n *lab.Node, revision int64) {
	t.Helper()
	eventually(t, func() error {
		r, err := ask(t, n, manxv1.ManxClient.GetStatus, &manxv1.GetStatusRequest{})
		if err == nil && r.GetDatastore().GetRevision() < revision {
			err = fmt.Errorf("%s has read up to revision %d, want %d", n.Name, r.GetDatastore().GetRevision(), revision)
		}
		return err
	})
}

func sameSessions(t *testing.T, before, after []*manxv1.Peer) {
	t.Helper()
	now := map[string]*manxv1.Peer{}
	for _, p := range after {
		now[p.GetAddress()] = p
	}
	for _, p := range before {
		if q := now[p.GetAddress()]; q.GetEstablishedUnixMs() != p.GetEstablishedUnixMs() {
			t.Errorf("the session with %s was disturbed: before %v, now %v", p.GetAddress(), p, q)
		}
	}
}

// stable waits until a daemon holds no more than before, but for what comes and goes with a connection or a timer.
func stable(t *testing.T, n *lab.Node, before process) {
	t.Helper()
	const some = 12
	var now process
	err := lab.Eventually(limit, func() error {
		if now = measure(t, n); now.fds > before.fds+some || now.goroutines > before.goroutines+some {
			return fmt.Errorf("%s leaks: %s before, %s now", n.Name, before, now)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s: %s before, %s after", n.Name, before, now)
}
