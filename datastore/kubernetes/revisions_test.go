package kubernetes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// TestRevisions: they behave as a map by key.
func TestRevisions(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	have, want := newRevisions(model.KindWorkloadEndpoint), map[model.Key]int64{}
	for i := range int64(20_000) {
		k := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: fmt.Sprint("ns-", random.IntN(5)),
			Name: fmt.Sprint("pod-", random.IntN(20))}
		switch random.IntN(20) {
		case 0:
			have.forget()
			for k := range want {
				want[k] = -1
			}
		case 1: // as a full read does
			for k, revision := range have.all {
				if revision%3 == 0 {
					have.remove(k)
				}
			}
			maps.DeleteFunc(want, func(_ model.Key, revision int64) bool { return revision%3 == 0 })
		case 2, 3, 4, 5, 6, 7, 8:
			have.remove(k)
			delete(want, k)
		default:
			have.set(k, i)
			want[k] = i
		}
		got, ok := have.get(k)
		if revision, known := want[k]; got != revision || ok != known {
			t.Fatalf("%s is at %d (%t), want %d (%t)", k, got, ok, revision, known)
		}
		if all := maps.Collect(have.all); !maps.Equal(all, want) || have.len() != len(want) {
			t.Fatalf("%d revisions %v, want %v", have.len(), all, want)
		}
	}
}

// TestRevisionsTakeLittle: they are kept for each pod of the cluster.
func TestRevisionsTakeLittle(t *testing.T) {
	const namespaces, pods = 300, 30_000
	keys := make([]model.Key, pods)
	for i := range keys { // a decoder makes each text anew
		keys[i] = model.Key{Kind: model.KindWorkloadEndpoint, Namespace: strings.Clone(fmt.Sprint("ns-", i%namespaces)),
			Name: fmt.Sprint("pod-", i)}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	f := &feed{known: newRevisions(model.KindWorkloadEndpoint)}
	for i, k := range keys {
		f.known.set(k, int64(i))
	}
	size := (heap() - before) / pods
	runtime.KeepAlive(f)
	runtime.KeepAlive(keys)
	t.Logf("%d bytes for a pod", size)
	if size > 60 {
		t.Errorf("%d bytes for a pod, want at most 60", size)
	}
}
