package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// Sizes of the benchmarks of policy.
const (
	benchRemotes = 100_000
	benchChanges = 1_000
)

// BenchmarkPolicy measures a first start, from the first snapshot until the kernel has the rules; then changes, 100 a
// second, each from the event of the watch to the kernel's commit; and a second start with the rules in the kernel.
func BenchmarkPolicy(b *testing.B) {
	for _, policies := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("policies=%d/endpoints=%d/changes=%d", policies, benchRemotes, benchChanges),
			func(b *testing.B) {
				repeat(b, policyJob{Policies: policies, Remotes: benchRemotes, Tables: true, Changes: benchChanges})
			})
		b.Run(fmt.Sprintf("policies=%d/endpoints=%d/no-datastore", policies, benchRemotes), func(b *testing.B) {
			repeat(b, policyJob{Policies: policies, Remotes: benchRemotes})
		})
	}
}

// repeat reports means.
func repeat(b *testing.B, j policyJob) {
	sum := policyResult{}
	for range b.N {
		j.Namespace = namespace.New(b, "manxpb")
		for name, v := range j.run(b) {
			sum[name] += v
		}
	}
	for name, v := range sum {
		if !strings.Contains(name, ":") {
			b.ReportMetric(v/float64(b.N), name)
		}
	}
	b.ReportMetric(0, "ns/op")
	text := ""
	for _, kind := range changeKinds {
		if v, ok := sum[kind+":p50"]; ok {
			text += fmt.Sprintf("\n%-15s p50 %8.0f us, p99 %8.0f us", kind, v/float64(b.N),
				sum[kind+":p99"]/float64(b.N))
		}
	}
	b.Log(text) // go test shows ten logs at most
}

var changeKinds = []string{"remote-added", "remote-removed", "remote-label", "local-label", "local-added",
	"local-removed",
	"policy-rule", "policy-added", "policy-removed", "global-rule"}

// changes makes n changes of all kinds, 100 a second.
func (w *worker) changes(r policyResult, n int) {
	ctx, cancel := context.WithCancel(context.Background())
	var helpers sync.WaitGroup
	seen := w.tables.Snapshot()
	helpers.Go(func() { w.follow(ctx, seen) })
	l := &latencies{kinds: make([]string, n), sent: make([]time.Time, n), seen: make([]time.Time, n)}
	done := make(chan struct{})
	helpers.Go(func() { l.watch(ctx, w, done) })

	*w.rules = countingRules{Rules: w.rules.Rules}
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu0, stolen0 := ownCPU(), stealTime()
	m := changer{cluster: w.cluster, random: rand.New(rand.NewPCG(1, 2))}
	tick := time.NewTicker(10 * time.Millisecond)
	for i := range n {
		kind, k, o := m.next()
		<-tick.C
		l.mu.Lock()
		l.kinds[i], l.sent[i] = kind, time.Now()
		l.mu.Unlock()
		w.tables.Apply(event(k, o, int64(i+2)))
	}
	tick.Stop()
	select {
	case <-done:
	case <-time.After(time.Minute):
		w.Fatalf("not all changes are in the kernel: %+v", w.agent.Status())
	}
	cancel()
	helpers.Wait()
	r["cpu-us/change"] = float64(ownCPU()-cpu0) / 1e3 / float64(n)
	r["transactions"], r["objects/transaction"] = float64(w.rules.transactions),
		float64(w.rules.objects)/float64(w.rules.transactions)
	r["comparisons"], r["stolen-ms"] = float64(w.rules.comparisons), milliseconds(stealTime()-stolen0)
	r["longest-commit-ms"], r["longest-commit-cpu-ms"] = milliseconds(w.rules.longest), milliseconds(w.rules.longestCPU)
	var after runtime.MemStats
	runtime.ReadMemStats(&after)
	r["collections"] = float64(after.NumGC - before.NumGC)
	l.report(r)
}

// follow passes changes to the agent as manxd does.
func (w *worker) follow(ctx context.Context, seen *datastore.Snapshot) {
	for {
		next, err := w.tables.Wait(ctx, seen)
		if err != nil {
			return
		}
		var changed []model.Key
		for c := range next.Changes(seen) {
			changed = append(changed, c.Key)
		}
		if seen = next; len(changed) > 0 {
			w.agent.SetState(dataplane.State{Reader: next, Changed: changed})
		}
	}
}

// latencies are the times of changes; change i has revision i+2.
type latencies struct {
	mu         sync.Mutex
	kinds      []string
	sent, seen []time.Time
}

// watch records the time of each change in the kernel.
func (l *latencies) watch(ctx context.Context, w *worker, done chan<- struct{}) {
	defer close(done)
	for next := 0; next < len(l.seen); {
		reached := w.agent.Reached()
		for have := int(w.agent.Revision()) - 2; next < len(l.seen) && next <= have; next++ {
			l.seen[next] = time.Now()
		}
		if next == len(l.seen) {
			return
		}
		select {
		case <-reached:
		case <-ctx.Done():
			return
		}
	}
}

// report reports percentiles in microseconds, of all changes and of each kind.
func (l *latencies) report(r policyResult) {
	all, kinds := []float64{}, map[string][]float64{}
	for i := range l.sent {
		us := float64(l.seen[i].Sub(l.sent[i])) / 1e3
		all, kinds[l.kinds[i]] = append(all, us), append(kinds[l.kinds[i]], us)
	}
	r["p50-us"], r["p99-us"], r["max-us"] = percentile(all, 50), percentile(all, 99), percentile(all, 100)
	for kind, list := range kinds {
		r[kind+":p50"], r[kind+":p99"] = percentile(list, 50), percentile(list, 99)
	}
}

func percentile(list []float64, p int) float64 {
	slices.Sort(list)
	return list[min(len(list)*p/100, len(list)-1)]
}

// changer generates changes.
type changer struct {
	cluster cluster
	random  *rand.Rand
	step    int
}

func (m *changer) next() (kind string, k model.Key, o *model.Object) {
	m.step++
	c := m.cluster
	remote := func() int { return m.random.IntN(c.remotes) }
	local := func() int { return c.remotes + m.random.IntN(benchLocals) }
	change := func(kind string, o *model.Object) (string, model.Key, *model.Object) { return kind, o.Key, o }
	remove := func(kind string, o *model.Object) (string, model.Key, *model.Object) { return kind, o.Key, nil }
	switch m.step % 20 {
	case 0, 5, 10, 15:
		return change("remote-added", podOn("node-7", c.remotes+1000+m.step, "v1"))
	case 1, 6, 11, 16:
		return remove("remote-removed", podOn("node-7", c.remotes+999+m.step, "v1"))
	case 2, 7, 12:
		return change("remote-label", c.pod(remote(), fmt.Sprint("v", m.step)))
	case 17:
		return change("local-label", c.pod(local(), fmt.Sprint("v", m.step)))
	case 3, 8, 13:
		// One of a namespace that has pods on this node, every other time.
		i := m.random.IntN(c.policies - benchGlobals)
		if m.step%2 == 1 {
			i = i/benchNamespaces*benchNamespaces + i%benchLocals
		}
		return change("policy-rule", c.policy(min(i, c.policies-benchGlobals-1), 8000+m.step%900))
	case 4:
		return change("policy-added", c.policy(m.extra(m.step), 8080))
	case 9:
		return remove("policy-removed", c.policy(m.extra(m.step-5), 8080))
	case 14:
		return change("local-added", podOn(benchNode, c.remotes+1000+m.step, "v1"))
	case 19:
		return remove("local-removed", podOn(benchNode, c.remotes+995+m.step, "v1"))
	}
	return change("global-rule", c.global(4+m.step/20%6, 8000+m.step%900))
}

// extra is a policy on top of a cluster's, of a namespace with pods on this node.
func (m *changer) extra(step int) int {
	return (m.cluster.policies/benchNamespaces+1)*benchNamespaces + step/20*2%benchLocals
}
