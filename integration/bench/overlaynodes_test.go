package bench

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/vishvananda/netlink"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// overlayNode is node i of a simulated cluster with VXLAN, and its block.
func overlayNode(i int) (*model.Object, netip.Prefix) {
	block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + byte(i>>10), byte(i >> 2), byte(i<<6) & 0xc0}), 26)
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}
	n.Spec.BGP = &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("10.201.%d.%d/16", i/250, 1+i%250)}
	n.Spec.IPv4VXLANTunnelAddr = block.Addr().String()
	return model.NewObject(model.ResourceKey(model.KindNode, n.Name), n), block
}

// BenchmarkOverlayNodes gives the dataplane of one node, on the real kernel of a namespace, a cluster of n nodes with a
// block each by VXLAN: the time until all entries and routes are there, then that until a further node has its route,
// which comes last, with the processor time of both, and the memory that is kept.
func BenchmarkOverlayNodes(b *testing.B) {
	namespace.Require(b)
	for _, n := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var all, one, cost, first []time.Duration
			for range b.N {
				r := measureNodes(b, n)
				all, first = append(all, r.all), append(first, r.first)
				one, cost = append(one, r.one...), append(cost, r.cost...)
				b.ReportMetric(r.memory, "kept-MB")
			}
			middle := func(list []time.Duration) float64 {
				slices.Sort(list)
				return float64(list[len(list)/2].Microseconds())
			}
			b.ReportMetric(float64(3*n)/(middle(all)/1e6), "entries/s")
			b.ReportMetric(middle(first)/1e3, "all-cpu-ms")
			b.ReportMetric(middle(one)/1e3, "one-ms")
			b.ReportMetric(middle(cost)/1e3, "one-cpu-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// nodesResult are the times of one cluster.
type nodesResult struct {
	all, first time.Duration // until all are in the kernel, and the processor time
	one        []time.Duration
	cost       []time.Duration // the processor time of each
	memory     float64         // megabytes
}

func measureNodes(b *testing.B, n int) (r nodesResult) {
	b.Helper()
	ns := namespace.New(b, "manxon")
	namespace.IP(b, ns, "link add eth0 type veth peer name peer")
	namespace.IP(b, ns, "addr add 10.200.0.1/16 dev eth0")
	namespace.IP(b, ns, "link set eth0 up")
	namespace.IP(b, ns, "link set peer up")
	conn, err := kernel.Open("/run/netns/" + ns)
	if err != nil {
		b.Fatal(err)
	}
	routes := make(chan netlink.RouteUpdate, 100_000)
	done := make(chan struct{})
	defer close(done)
	if err := namespace.Inside(ns, func() {
		o := netlink.RouteSubscribeOptions{ReceiveBufferSize: 32 << 20, ReceiveBufferForceSize: true}
		if err := netlink.RouteSubscribeWithOptions(routes, done, o); err != nil {
			b.Error(err)
		}
	}); err != nil {
		b.Fatal(err)
	}
	pool := &model.IPPool{}
	pool.Spec.CIDR, pool.Spec.VXLANMode = "10.64.0.0/10", v3.VXLANModeAlways
	set := model.NewSet(model.NewObject(model.ResourceKey(model.KindIPPool, "pods"), pool))
	own, _ := overlayNode(n + 200)
	own.Value.(*model.Node).Spec.BGP.IPv4Address = "10.200.0.1/16"
	set[own.Key] = own
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	agent := dataplane.New(dataplane.Config{Kernel: dataplane.KernelOf(conn), Logger: zap.NewNop(),
		NodeName: own.Key.Name})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { _ = agent.Run(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	var places []route.Place
	for i := range n {
		o, block := overlayNode(i)
		set[o.Key] = o
		places = append(places, route.Place{Prefix: block, Node: o.Key.Name})
	}
	start, work := time.Now(), ownCPU()
	next := grown{set, model.Set{}}
	agent.SetState(dataplane.State{Reader: next, All: true, DatastoreSynced: true, BGPSynced: true})
	agent.Place(places, true)
	awaitRoutes(b, routes, n)
	r.all, r.first = time.Since(start), ownCPU()-work
	runtime.GC()
	runtime.ReadMemStats(&after)
	r.memory = float64(after.HeapAlloc-before.HeapAlloc) / 1e6
	const more = 50
	for i := n; i < n+more; i++ {
		o, block := overlayNode(i)
		next = grown{next.Set, maps.Clone(next.more)} // so that the work is the agent's alone
		next.more[o.Key] = o
		paused := ownCPU()
		start := time.Now()
		agent.SetState(dataplane.State{Reader: next, Changed: []model.Key{o.Key}, DatastoreSynced: true,
			BGPSynced: true})
		agent.Place([]route.Place{{Prefix: block, Node: o.Key.Name}}, true)
		awaitRoutes(b, routes, 1)
		r.one = append(r.one, time.Since(start))
		r.cost = append(r.cost, ownCPU()-paused)
		time.Sleep(20 * time.Millisecond) // the effects of its events
	}
	return r
}

// grown is a large set with a few more objects.
type grown struct {
	model.Set
	more model.Set
}

func (g grown) Get(k model.Key) *model.Object { return cmp.Or(g.more[k], g.Set[k]) }

func (g grown) All(kind model.Kind) iter.Seq[*model.Object] {
	return func(yield func(*model.Object) bool) {
		for _, set := range []model.Set{g.Set, g.more} {
			for o := range set.All(kind) {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// awaitRoutes waits for the events of n routes through VXLAN.
func awaitRoutes(b *testing.B, routes <-chan netlink.RouteUpdate, n int) {
	b.Helper()
	timeout := time.After(time.Minute)
	for n > 0 {
		select {
		case r := <-routes:
			if r.Gw != nil && r.Flags&int(netlink.FLAG_ONLINK) != 0 {
				n--
			}
		case <-timeout:
			b.Fatalf("%d routes are missing", n)
		}
	}
}
