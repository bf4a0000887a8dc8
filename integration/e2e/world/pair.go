package world

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/manxnet/manx/integration/lab"
)

// PairFlags are the flags of manxd on both nodes of NewPair, beside those of the datastore.
var PairFlags = []string{"--no-default-pools", "--ip=autodetect", "--ip6=autodetect",
	"--ip-autodetection-method=interface=eth0", "--ip6-autodetection-method=interface=eth0"}

// NewPair makes two nodes of one rack, the first with the datastore, and pods on both: the nodes by the names of the
// pods. The namespace of the router is a machine on the underlay.
func NewPair(t *testing.T, name string, pods map[string]string) *Cluster {
	t.Helper()
	l := NewLab(t, lab.Spec{Name: LabName(name), IPv6: true, PlainRouters: true,
		Nodes: []lab.NodeSpec{{Name: "n1"}, {Name: "n2"}}})
	c := &Cluster{Lab: l, N1: l.Nodes[0], N2: l.Nodes[1], ToR1: l.ToRs[0], Pods: map[string]*lab.Pod{}}
	Must(t, c.N1.StartManxd(append(c.N1.EmbedDatastore(), PairFlags...)...))
	Must(t, c.N1.Ready(Limit))
	Must(t, c.N1.Apply(fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods4}
spec: {cidr: %s, blockSize: 26, natOutgoing: true}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: pods6}
spec: {cidr: "%s", blockSize: 122, natOutgoing: true}
`, Pool4, Pool6)))
	Must(t, c.N2.StartManxd(append(lab.UseDatastore(c.N1), PairFlags...)...))
	Must(t, c.N2.Ready(Limit))
	c.Etcd = DialEtcd(t, c.N1)
	for _, n := range c.Nodes {
		// A flood makes many unanswered connections; they should not fill the table.
		_, err := n.Run("sh", "-c", "echo 2 >/proc/sys/net/netfilter/nf_conntrack_udp_timeout")
		Must(t, err)
	}
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		c.AddPod(t, c.Node(pods[name]), name)
	}
	return c
}
