package node

import (
	"net/netip"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// testRestoredDatastore starts pods after the blocks of IPAM were put back to an earlier state, as with a snapshot of
// etcd: no pod gets the address of one that runs on the same host.
func (c *cluster) testRestoredDatastore(t *testing.T) {
	const blocks = "/calico/ipam/v2/assignment/"
	before := c.Raw(t, blocks)
	has := map[netip.Addr]string{}
	var pods []*lab.Pod
	add := func(names ...string) {
		t.Helper()
		for _, name := range names {
			p, err := c.N2.AddPod(name, lab.DualStack)
			must(t, err)
			pods = append(pods, p)
			for _, a := range p.IPs {
				if other := has[a]; other != "" {
					t.Errorf("%s has %s, as %s", name, a, other)
				}
				has[a] = name
			}
		}
	}
	add("before1", "before2", "before3")
	for key, value := range before {
		c.Put(t, key, value)
	}
	add("after1", "after2", "after3")
	world.Contains(t, "the log of manxd", c.N2.Log(), "is free in the datastore is in use on this host",
		pods[0].IPs[0].String())
	for _, p := range pods {
		must(t, p.Delete())
	}
	c.Settled(t)
}
