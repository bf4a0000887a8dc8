package bench

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/namespace"
)

// tenantPolicy is a policy with a number of rules that each match all pods of the cluster; with Own each rule has other
// members than all other rules.
type tenantPolicy struct {
	Rules int
	Own   bool
}

// BenchmarkTenantPolicy measures how long a new pod of one tenant waits for its policy, and the memory, while another
// tenant changes a policy four times a second; 10,000 pods are on other nodes. The figures are ratios to those of a
// time without the other tenant, by turns.
func BenchmarkTenantPolicy(b *testing.B) {
	for _, x := range []struct {
		name   string
		policy tenantPolicy
	}{
		{"rules=2000", tenantPolicy{Rules: 2_000}},
		{"rules=10000", tenantPolicy{Rules: 10_000}},
		{"rules=900", tenantPolicy{Rules: 900}},
		{"rules=900/own-members", tenantPolicy{Rules: 900, Own: true}},
		{"rules=48/own-members", tenantPolicy{Rules: 48, Own: true}},
	} {
		b.Run(x.name, func(b *testing.B) {
			sum := policyResult{}
			for range b.N {
				var results [2]policyResult
				for i, p := range []tenantPolicy{{}, x.policy} {
					j := policyJob{Policies: 1_000, Remotes: 10_000, Tables: true, Attack: &p,
						Namespace: namespace.New(b, "manxpb")}
					results[i] = j.run(b)
				}
				for _, name := range []string{"pod-p50-us", "pod-p90-us", "pod-max-us", "peak-MB", "after-MB",
					"cpu-ms/s"} {
					sum["usual-"+name] += results[0][name]
					sum[name] += results[1][name]
				}
			}
			for name, v := range sum {
				b.ReportMetric(v/float64(b.N), name)
			}
			b.ReportMetric(sum["pod-p50-us"]/sum["usual-pod-p50-us"], "p50-ratio")
			b.ReportMetric(sum["peak-MB"]/sum["usual-peak-MB"], "memory-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// object is the policy of a namespace, in one of two versions.
func (p tenantPolicy) object(namespace string, version int) *model.Object {
	v := &v3.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}}
	v.Spec = v3.NetworkPolicySpec{Selector: "all()", Types: []v3.PolicyType{v3.PolicyTypeIngress}}
	for i := range p.Rules {
		s := fmt.Sprintf("!has(a%d)", i*2+version)
		if p.Own {
			s = fmt.Sprintf("projectcalico.org/namespace != 'ns-%d' && app != 'app-%d'", i*2+version, i)
		}
		v.Spec.Ingress = append(v.Spec.Ingress, v3.Rule{Action: v3.Allow,
			Source: v3.EntityRule{NamespaceSelector: "all()", Selector: s}})
	}
	return model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: namespace, Name: "tenant"}, v)
}

// tenants measures new pods of one tenant for some seconds.
func (w *worker) tenants(r policyResult, p tenantPolicy) {
	const seconds, pause = 10, 50 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var helpers sync.WaitGroup
	seen := w.tables.Snapshot()
	helpers.Go(func() { w.follow(ctx, seen) })
	var mu sync.Mutex
	revision := int64(1)
	apply := func(k model.Key, o *model.Object) {
		mu.Lock()
		defer mu.Unlock()
		revision++
		w.tables.Apply(event(k, o, revision))
	}
	if p.Rules > 0 {
		evil := podOn(benchNode, w.cluster.remotes, "v1").Key.Namespace
		versions := []*model.Object{p.object(evil, 0), p.object(evil, 1)}
		helpers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				apply(versions[i%2].Key, versions[i%2])
				select {
				case <-time.After(250 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	var waits []float64
	cpu0, start := ownCPU(), time.Now()
	for i := 0; time.Since(start) < seconds*time.Second; i++ {
		o := podOn(benchNode, w.cluster.remotes+1001+2*(i%50), "v1")
		there := w.await(o.Workload().Interface)
		begin := time.Now()
		apply(o.Key, o)
		select {
		case <-there:
		case <-time.After(time.Minute):
			w.Fatal("a new pod never gets its policy")
		}
		waits = append(waits, float64(time.Since(begin))/1e3)
		apply(o.Key, nil)
		time.Sleep(pause) // the next pod
	}
	r["cpu-ms/s"] = milliseconds(ownCPU()-cpu0) / seconds
	r["pod-p50-us"], r["pod-p90-us"] = percentile(waits, 50), percentile(waits, 90)
	r["pod-max-us"] = percentile(waits, 100)
	cancel()
	helpers.Wait()
	r["after-MB"] = statusMB(os.Getpid(), "VmRSS")
}

// await returns a channel that is closed when the rules of an interface are in the kernel.
func (w *worker) await(iface string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.awaited, w.there = iface, make(chan struct{})
	return w.there
}

func (w *worker) reported(p endpointstatus.Policy) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.awaited != "" && p.Interfaces[w.awaited] {
		w.awaited = ""
		close(w.there)
	}
}
