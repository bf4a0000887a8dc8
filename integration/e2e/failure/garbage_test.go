package failure

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// testGarbage writes values that no client of Calico would write, under keys of every kind that the daemon watches.
func (c *cluster) testGarbage(t *testing.T) {
	n := c.N2
	before, sessionsBefore := world.Measure(t, n), world.Peers(t, n)
	watch := world.WatchRoutes(t, n)
	defer watch.Stop()

	valid := c.Raw(t, "/calico/")
	written := 0
	for kind, key := range map[string]string{
		"nodes": "nodes/bad%d", "ippools": "ippools/bad%d", "bgpconfigurations": "bgpconfigurations/node.bad%d",
		"bgppeers":            "bgppeers/bad%d",
		"clusterinformations": "clusterinformations/bad%d", "felixconfigurations": "felixconfigurations/node.bad%d",
		"workloadendpoints": "workloadendpoints/default/n2-k8s-bad%d-eth0",
	} {
		for i, value := range garbage(valid, world.ResourceKeys+kind+"/") {
			c.Put(t, world.ResourceKeys+fmt.Sprintf(key, i), value)
			written++
		}
	}
	for i, value := range garbage(valid, "/calico/ipam/v2/host/") {
		c.Put(t, fmt.Sprintf("/calico/ipam/v2/host/n2/ipv4/block/198.18.%d.0-28", i), value)
		written++
	}
	// Invalid keys in watched ranges.
	c.Put(t, "/calico/ipam/v2/host/n2/ipv4/block/not-a-block", "{}")
	c.Put(t, world.ResourceKeys+"workloadendpoints/too/many/slashes", "{}")
	last := c.Put(t, world.ResourceKeys+"nodes/", "{}")
	written += 3
	c.awaitRevision(t, n, last)

	out, err := n.Manxctl("status")
	must(t, err)
	world.Contains(t, "manxctl status", out, "cannot be used", "8 sessions: 8 Established", "Health:     ok")
	t.Log(world.LineWith(out, "cannot be used"))
	out, err = n.Manxctl("node", "problems")
	must(t, err)
	for _, kind := range []string{"Node", "IPPool", "BGPConfiguration", "BGPPeer", "ClusterInformation",
		"FelixConfiguration", "WorkloadEndpoint", "BlockAffinity"} {
		if world.LineWith(out, kind+" ") == "" {
			t.Errorf("manxctl node problems names no %s:\n%s", kind, out)
		}
	}
	t.Logf("%d bad values written, %d lines in manxctl node problems, for instance: %s", written,
		strings.Count(out, "\n")-1, world.LineWith(out, "BGPPeer"))

	for key := range c.Raw(t, "/calico/") {
		if _, ok := valid[key]; !ok {
			_, err := c.Etcd.Delete(t.Context(), key)
			must(t, err)
		}
	}
	c.awaitRevision(t, n, c.Put(t, world.ResourceKeys+"nodes/n3", valid[world.ResourceKeys+"nodes/n3"]))
	if r, err := world.Call(t, n, manxv1.ManxClient.ListQuarantined, &manxv1.ListQuarantinedRequest{}); err != nil ||
		len(r.GetObjects()) > 0 {
		t.Errorf("still in quarantine: %v, %v", r.GetObjects(), err)
	}
	world.SameSessions(t, sessionsBefore, world.Peers(t, n))
	for _, gone := range watch.Deleted(t) {
		// An affinity without a state is valid, so some of the values made a blackhole.
		if !strings.Contains(gone, "Deleted blackhole 198.18.") {
			t.Errorf("a route was deleted meanwhile: %s", gone)
		}
	}
	c.truncated(t, n, valid)
	c.Settled(t)
	world.Stable(t, n, before)
	c.truncatedAtStart(t, n, valid)
}

// garbage are invalid values, among them truncated parts of a valid one below prefix.
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

// truncated truncates objects that are in use, one after the other, and restores them. Their last valid version stays
// in use, so that traffic is undisturbed.
func (c *cluster) truncated(t *testing.T, n *lab.Node, valid map[string]string) {
	for _, key := range []string{"ippools/pods4", "bgppeers/tor1-n2", "nodes/n3", "nodes/n2"} {
		value := valid[world.ResourceKeys+key]
		if value == "" {
			t.Fatalf("no %s in the datastore", key)
		}
		before := world.Peers(t, n)
		c.awaitRevision(t, n, c.Put(t, world.ResourceKeys+key, value[:len(value)/2]))
		out, err := n.Manxctl("node", "problems")
		must(t, err)
		world.Contains(t, "manxctl node problems", out, key[strings.Index(key, "/")+1:], "stays in use")
		world.SameSessions(t, before, world.Peers(t, n))
		c.awaitRevision(t, n, c.Put(t, world.ResourceKeys+key, value))
		c.Settled(t)
		world.SameSessions(t, before, world.Peers(t, n))
	}
}

// truncatedAtStart restarts a daemon while an object is truncated: the version that the run before has kept stays in
// use, also at the start after that.
func (c *cluster) truncatedAtStart(t *testing.T, n *lab.Node, valid map[string]string) {
	const key = world.ResourceKeys + "bgppeers/tor1-n2"
	c.awaitRevision(t, n, c.Put(t, key, valid[key][:len(valid[key])/2]))
	for range 2 {
		n.Manxd().Kill()
		must(t, n.StartManxd())
		c.Established(t, n, world.Sessions)
		out, err := n.Manxctl("node", "problems")
		must(t, err)
		world.Contains(t, "manxctl node problems", out, "tor1-n2", "stays in use")
	}
	c.awaitRevision(t, n, c.Put(t, key, valid[key]))
	c.Settled(t)
}

// awaitRevision waits until a node has read the datastore up to a revision.
func (c *cluster) awaitRevision(t *testing.T, n *lab.Node, revision int64) {
	t.Helper()
	eventually(t, func() error {
		r, err := world.Call(t, n, manxv1.ManxClient.GetStatus, &manxv1.GetStatusRequest{})
		if err == nil && r.GetDatastore().GetRevision() < revision {
			err = fmt.Errorf("%s has read up to revision %d, want %d", n.Name, r.GetDatastore().GetRevision(), revision)
		}
		return err
	})
}
