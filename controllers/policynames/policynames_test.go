package policynames

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

const (
	root = "/calico/resources/v3/projectcalico.org/"
	old  = `{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.x","uid":"1b8e7bbf-84c2-4066-8460-86955948669f","creationTimestamp":"2026-11-20T22:54:11Z","labels":{"projectcalico.org/tier":"default"}},"spec":{"tier":"default","order":7,"selector":"all()","types":["Ingress"],"fromTheFuture":1}}`
	np   = `{"kind":"NetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.y","namespace":"shop","uid":"1b8e7bbf-84c2-4066-8460-869559486690"},"spec":{"selector":"all()","types":["Ingress"]}}`
	mine = `{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.z","annotations":{"projectcalico.org/metadata":"{\"name\":\"default.z\"}"}},"spec":{"tier":"default","selector":"all()","types":["Ingress"]}}`
)

// Policies get their current names once every reader supports them, even if any process is killed on the way.
func TestRename(t *testing.T) {
	for writes := 1; writes <= 5; writes++ {
		server := etcdtest.Start(t)
		store, client := server.Store(t), server.Client(t)
		for path, raw := range map[string]string{"globalnetworkpolicies/default.x": old,
			"networkpolicies/shop/default.y":  np,
			"globalnetworkpolicies/default.z": mine} {
			if _, err := client.Put(t.Context(), root+path, raw); err != nil {
				t.Fatal(err)
			}
		}
		var ready atomic.Bool
		var checks atomic.Int64
		run := func(through datastore.Store) (stop func()) {
			ctx, cancel := context.WithCancel(context.Background())
			tables := datastore.NewTables(zap.NewNop(), "")
			go func() { _ = tables.Run(ctx, store, Kinds()...) }()
			m := &Migrator{Store: through, Log: zap.NewNop(), CheckInterval: 10 * time.Millisecond,
				Ready: func(context.Context) (string, error) {
					checks.Add(1)
					if ready.Load() {
						return "", nil
					}
					return "an old agent runs", nil
				}}
			done := make(chan struct{})
			go func() { defer close(done); _ = m.Run(ctx, tables) }()
			return func() { cancel(); <-done }
		}
		count := func(path string) int64 {
			r, err := client.Get(context.Background(), root+path)
			if err != nil {
				t.Fatal(err)
			}
			return r.Count
		}
		crashing := memory.NewCrashingStore(store, writes)
		stop := run(crashing)
		for end := time.Now().Add(time.Minute); checks.Load() < 3; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("no check whether an old agent runs")
			}
		}
		if count("globalnetworkpolicies/x") != 0 {
			t.Fatal("renamed while an old agent runs")
		}
		ready.Store(true)
		if writes <= 4 {
			<-crashing.Dead
		}
		stop2 := run(store)
		calicotest.Eventually(t, "the policies are renamed", func() bool {
			return count("globalnetworkpolicies/x") == 1 && count("globalnetworkpolicies/default.x") == 0 &&
				count("networkpolicies/shop/y") == 1 && count("networkpolicies/shop/default.y") == 0
		})
		stop()
		stop2()
		if count("globalnetworkpolicies/default.z") != 1 {
			t.Error("a policy whose name is default.z was renamed")
		}
		o, err := store.Get(t.Context(), model.ResourceKey(model.KindGlobalNetworkPolicy, "x"))
		if err != nil {
			t.Fatal(err)
		}
		p := o.Value.(*v3.GlobalNetworkPolicy)
		if p.Name != "x" || *p.Spec.Order != 7 || string(p.UID) == "" {
			t.Errorf("renamed to %s", o.Raw)
		}
	}
}
