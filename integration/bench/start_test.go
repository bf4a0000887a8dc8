package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// BenchmarkStart is the time from starting manxd, on a datastore with n other nodes of four blocks each, to its being
// ready. The mesh is off, so that what is measured is Manx and not a thousand absent peers.
func BenchmarkStart(b *testing.B) {
	for _, n := range []int{0, 100, 1000} {
		b.Run(fmt.Sprintf("%d-nodes", n), func(b *testing.B) {
			s := newSite(b)
			sp := s.startManxd(b)
			populate(b, s, n)
			sp.stop()
			var wall, work time.Duration
			var rss, private float64
			for range b.N {
				t0 := time.Now()
				if err := s.node.StartManxd(); err != nil {
					b.Fatal(err)
				}
				if err := s.node.Ready(2 * time.Minute); err != nil {
					b.Fatal(err)
				}
				wall += time.Since(t0)
				pid := s.node.Manxd().PID()
				work += cpu(pid)
				rss, private = max(rss, statusMB(pid, "VmRSS")), max(private, privateMB(pid))
				s.node.Manxd().Kill()
			}
			b.ReportMetric(float64(wall.Milliseconds())/float64(b.N), "ready-ms")
			b.ReportMetric(float64(work.Milliseconds())/float64(b.N), "cpu-ms")
			b.ReportMetric(rss, "rss-MB")
			b.ReportMetric(private, "private-MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// populate writes n nodes and their blocks.
func populate(b *testing.B, s *site, n int) {
	b.Helper()
	store, err := openStore(s)
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	ctx := context.Background()
	off := false
	config := &model.BGPConfiguration{Spec: model.BGPConfigurationSpec{NodeToNodeMeshEnabled: &off}}
	key := model.ResourceKey(model.KindBGPConfiguration, "default")
	if old, err := store.Get(ctx, key); err == nil {
		if _, err := store.Delete(ctx, key, old.Revision); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := store.Create(ctx, model.NewObject(key, config)); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		name := fmt.Sprintf("other-%d", i)
		node := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		node.Spec.BGP = &model.NodeBGPSpec{IPv4Address: fmt.Sprintf("10.201.%d.%d/16", i/250, 1+i%250)}
		if _, err := store.Create(ctx, model.NewObject(model.ResourceKey(model.KindNode, name), node)); err != nil {
			b.Fatal(err)
		}
		for j := range 4 {
			if err := createBlock(ctx, store, name, i*4+j); err != nil {
				b.Fatal(err)
			}
		}
	}
}
