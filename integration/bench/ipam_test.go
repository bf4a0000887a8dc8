package bench

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// BenchmarkIPAM measures the allocator alone, without cache, container or network: N hosts assign one address after the
// other, and 110 pods of one node begin at once, as when it becomes ready. Those of one node take turns, as in manxd.
// An operation is one such round; the time of an assignment includes the wait for its turn.
func BenchmarkIPAM(b *testing.B) {
	for _, d := range []struct {
		name string
		open func(*testing.B, int) datastore.Store
	}{{"etcd", openEtcd}, {"kubernetes", openKubernetes}} {
		for _, hosts := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s,%d-hosts", d.name, hosts), func(b *testing.B) {
				assignments(b, d.open(b, hosts), hosts, 1, max(64/hosts, 4))
			})
		}
		b.Run(d.name+",110-at-once", func(b *testing.B) { assignments(b, d.open(b, 1), 1, 110, 1) })
	}
}

// assignments lets each host assign addresses: so many at a time, each so often.
func assignments(b *testing.B, store datastore.Store, hosts, atOnce, times int) {
	pool := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}
	pool.Spec.CIDR = "10.0.0.0/12"
	_, err := store.Create(b.Context(), model.NewObject(model.ResourceKey(model.KindIPPool, "pods"), pool))
	if err != nil {
		b.Fatal(err)
	}
	for h := range hosts { // the first block is claimed when a node starts
		assign(b, store, h, fmt.Sprintf("first.%d", h))
	}
	var mu sync.Mutex
	var each []time.Duration
	round := 0
	b.ResetTimer()
	for b.Loop() {
		round++
		var all sync.WaitGroup
		for h := range hosts {
			var turn sync.Mutex
			for w := range atOnce {
				all.Go(func() {
					for i := range times {
						start := time.Now()
						turn.Lock()
						assign(b, store, h, fmt.Sprintf("%d.%d.%d.%d", round, h, w, i))
						turn.Unlock()
						took := time.Since(start)
						mu.Lock()
						each = append(each, took)
						mu.Unlock()
					}
				})
			}
		}
		all.Wait()
	}
	b.ReportMetric(float64(len(each))/b.Elapsed().Seconds(), "assignments/s")
	slices.Sort(each)
	b.ReportMetric(float64(each[len(each)/2].Microseconds())/1000, "ms-median")
	b.ReportMetric(float64(each[len(each)-1].Microseconds())/1000, "ms-slowest")
	b.ReportMetric(0, "ns/op")
}

func assign(b *testing.B, store datastore.Store, host int, handle string) {
	node := fmt.Sprintf("n%d", host)
	r, err := ipam.New(store, nil, nil).AutoAssign(context.WithoutCancel(b.Context()), ipam.Request{Host: node,
		Handle: handle, Attrs: map[string]string{"node": node}, Num4: 1, Use: "Workload"})
	if err == nil {
		err = r.Short()
	}
	if err != nil {
		b.Error(err)
	}
}

func openEtcd(b *testing.B, hosts int) datastore.Store {
	store := etcdtest.Start(b).Store(b)
	for h := range hosts {
		name := fmt.Sprintf("n%d", h)
		if _, err := store.Create(b.Context(), model.NewObject(model.ResourceKey(model.KindNode, name),
			&model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})); err != nil {
			b.Fatal(err)
		}
	}
	return store
}

func openKubernetes(b *testing.B, hosts int) datastore.Store {
	api := apiserver.Start(b)
	api.InstallCRDs(b, form.V1)
	for h := range hosts {
		api.Request(b, http.MethodPost, "/api/v1/nodes", map[string]any{"apiVersion": "v1", "kind": "Node",
			"metadata": map[string]any{"name": fmt.Sprintf("n%d", h)}})
	}
	store, err := kubernetes.OpenREST(b.Context(), kubernetes.Config{InterfacePrefix: "cali"},
		api.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	return store
}
