package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// BenchmarkNewNode measures the time from the request to store a new Node, and then its block, in a cluster with VXLAN
// until a node has the route to it: from then on its first packet passes. The datastore's time to acknowledge the
// objects is reported, too.
func BenchmarkNewNode(b *testing.B) {
	s := newSite(b)
	args := append(s.node.EmbedDatastore(), "--networking=vxlan", "--no-default-pools", "--ip=autodetect")
	check := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	check(s.node.StartManxd(args...))
	check(s.node.Ready(world.Limit))
	check(s.node.Apply("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\n" +
		"spec: {cidr: 10.64.0.0/10, vxlanMode: Always}\n"))
	check(lab.Eventually(world.Limit, func() error {
		_, err := s.node.Run("ip", "link", "show", "vxlan.calico", "up")
		return err
	}))
	routes := make(chan netlink.RouteUpdate, 1024)
	done := make(chan struct{})
	defer close(done)
	check(namespace.Inside(s.node.Namespace, func() { check(netlink.RouteSubscribe(routes, done)) }))
	store, err := openStore(s)
	check(err)
	defer store.Close()
	var took, acknowledged []time.Duration
	for i := range b.N {
		n, block := overlayNode(1000 + i)
		t0 := time.Now()
		_, err := store.Create(context.Background(), n)
		check(err)
		check(createBlockOf(context.Background(), store, n.Key.Name, block))
		acknowledged = append(acknowledged, time.Since(t0))
		awaitRoute(b, routes, block)
		took = append(took, time.Since(t0))
		time.Sleep(100 * time.Millisecond) // one change at a time
	}
	slices.Sort(acknowledged)
	b.ReportMetric(float64(acknowledged[len(acknowledged)/2].Microseconds()), "store-p50-us")
	slices.Sort(took)
	report(b, took)
}
