package controllers

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/controllers/migration"
	"github.com/manxnet/manx/controllers/settings"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// kube is a Kubernetes API without pods and services.
type kube struct {
	mu     sync.Mutex
	others string
}

func (k *kube) Pod(context.Context, string, string) (*model.Pod, error) {
	return nil, datastore.ErrNotFound
}
func (k *kube) VirtualMachine(context.Context, string, string) (bool, error) { return true, nil }
func (k *kube) OldNodes(context.Context) (string, error)                     { return "", nil }
func (k *kube) Behind(context.Context) (string, error)                       { return "", nil }
func (k *kube) Objects() migration.API                                       { return nil }
func (k *kube) Ending(context.Context) (string, error)                       { return "", nil }
func (k *kube) Others(context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.others, nil
}

func (k *kube) set(others string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.others = others
}

func (k *kube) Services() corev1client.CoreV1Interface {
	return corev1client.NewForConfigOrDie(&rest.Config{Host: "http://127.0.0.1:1"}) // nobody answers
}

// candidate is the controllers' part of a manxd.
type candidate struct {
	*Manager
	store *etcd.Store
	stop  func()
}

func start(
	t *testing.T, server *etcdtest.Server, name string, source datastore.Store, k *kube, change func(*Config),
) *candidate {
	t.Helper()
	config := server.Config()
	config.LeaseTTL = 5 * time.Second
	store, err := etcd.Open(context.Background(), config, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Node: name, Store: store, Kube: k, Log: zap.NewNop(), CheckInterval: 50 * time.Millisecond,
		Compactor: store, Source: func(context.Context) (datastore.Store, error) { return source, nil }}
	if change != nil {
		change(&c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	m := New(c)
	go func() { defer close(done); _ = m.Run(ctx) }()
	once := sync.OnceFunc(func() { cancel(); <-done; store.Close() })
	t.Cleanup(once)
	return &candidate{m, store, once}
}

func readConfig(t *testing.T, s datastore.Store) *model.KubeControllersConfiguration {
	t.Helper()
	o, err := s.Get(context.Background(), configKey)
	if err != nil {
		return &model.KubeControllersConfiguration{}
	}
	return o.Value.(*model.KubeControllersConfiguration)
}

// One of two candidates leads: it makes the configuration, reports the running controllers, follows changes of the
// configuration and goes on, and stops for calico-kube-controllers. Then the other candidate leads.
func TestLeader(t *testing.T) {
	server := etcdtest.Start(t)
	source, k := memory.New(inKubernetes()...), &kube{}
	env, err := settings.FromEnv(func(name string) (string, bool) { return "2m", name == "RECONCILER_PERIOD" })
	if err != nil {
		t.Fatal(err)
	}
	var ended atomic.Int32
	withEnv := func(c *Config) { c.Env, c.Ended = env, func() { ended.Add(1) } }
	first := start(t, server, "n1", source, k, withEnv)
	calicotest.Eventually(t, "n1 leads", func() bool { return first.State().Leading })
	second := start(t, server, "n2", source, k, withEnv)
	has := func(key model.Key) bool { _, err := second.store.Get(context.Background(), key); return err == nil }
	profile := model.ResourceKey(model.KindProfile, "kns.shop")
	calicotest.Eventually(t, "the controllers work", func() bool { return has(profile) })
	calicotest.Eventually(t, "the status says what runs", func() bool {
		s := readConfig(t, second.store).Status
		return s.RunningConfig != nil && s.EnvironmentVars["RECONCILER_PERIOD"] == "2m" &&
			s.RunningConfig.Controllers.Namespace.ReconcilerPeriod.Duration == 2*time.Minute
	})
	if second.State().Leading {
		t.Error("both lead")
	}
	runs := func(c *candidate, name string) func() bool {
		return func() bool { return strings.Contains(strings.Join(c.State().Controllers, " "), name) }
	}
	calicotest.Eventually(t, "all run", runs(first, "node-ipam"))
	if got := strings.Join(first.State().Controllers, " "); got != "etcd-compaction ipam-audit loadbalancer "+
		"namespace node-deleter "+
		"node-hostendpoints node-ipam node-labels policy policy-names serviceaccount workloadendpoint" {
		t.Error("these run:", got)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(first.Manager)
	want := "# HELP manx_controllers_leading 1 where the controllers of the cluster run.\n" +
		"# TYPE manx_controllers_leading gauge\nmanx_controllers_leading 1\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "manx_controllers_leading"); err != nil {
		t.Error(err)
	}

	edit(t, second.store, func(c *model.KubeControllersConfiguration) {
		c.Spec.Controllers.Namespace = nil
		c.Spec.Controllers.Node.HostEndpoint.AutoCreate = "Enabled"
	})
	calicotest.Eventually(t, "a controller ends", func() bool { return !runs(first, " namespace")() })
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}
	if _, err := second.store.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindNode, "bare"),
		n)); err != nil {
		t.Fatal(err)
	}
	hep := model.ResourceKey(model.KindHostEndpoint, "bare-auto-hep")
	calicotest.Eventually(t, "the new configuration is followed", func() bool { return has(hep) })

	k.set("calico-kube-controllers run")
	calicotest.Eventually(t, "the controllers rest", func() bool {
		s := first.State()
		return s.Yielding != "" && len(s.Controllers) == 0
	})
	calicotest.Eventually(t, "their memory is released", func() bool { return ended.Load() == 1 })
	k.set("")
	calicotest.Eventually(t, "they work again", runs(first, "policy"))
	lock, ready := &v3.ClusterInformation{}, false
	lock.Name, lock.Spec.DatastoreReady = "default", &ready
	locked, err := second.store.Create(t.Context(), model.NewObject(model.ResourceKey(model.KindClusterInformation,
		"default"), lock))
	if err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "nothing runs while the datastore is locked", func() bool {
		s := first.State()
		return strings.Contains(s.Problem, "the datastore is locked") && len(s.Controllers) == 0
	})
	if _, err := second.store.Delete(t.Context(), locked.Key, locked.Revision); err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "they work when it is unlocked", runs(first, "policy"))

	first.stop()
	calicotest.Eventually(t, "the memory of a leader that ends is released", func() bool { return ended.Load() == 2 })
	calicotest.Eventually(t, "n2 leads", func() bool { return second.State().Leading })
	calicotest.Eventually(t, "n2 works", runs(second, "policy"))
	edit(t, second.store, func(c *model.KubeControllersConfiguration) {
		c.Spec.Controllers.Namespace = &v3.NamespaceControllerConfig{}
	})
	source.Remove(model.ResourceKey(model.KindNamespace, "shop"))
	calicotest.Eventually(t, "n2 follows changes", func() bool { return !has(profile) })
}

func edit(t *testing.T, s datastore.Store, change func(*model.KubeControllersConfiguration)) {
	t.Helper()
	calicotest.Eventually(t, "the configuration is changed", func() bool {
		o, err := s.Get(context.Background(), configKey)
		if err != nil {
			return false
		}
		change(o.Value.(*model.KubeControllersConfiguration))
		_, err = s.Update(context.Background(), o)
		return err == nil
	})
}

// Without the Kubernetes API, only the controllers run that do not need it.
func TestWithoutKubernetes(t *testing.T) {
	server := etcdtest.Start(t)
	c := start(t, server, "n1", nil, nil, func(c *Config) { c.Kube, c.Source, c.Always = nil, nil, true })
	calicotest.Eventually(t, "controllers run", func() bool { return len(c.State().Controllers) > 0 })
	if got := strings.Join(c.State().Controllers, " "); got != "etcd-compaction ipam-audit node-hostendpoints" {
		t.Error("these run:", got)
	}
}

// The garbage collection releases a leaked address on a real etcd, by its own loop.
func TestCollectorOnEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	source := memory.New(inKubernetes()...)
	store := server.Store(t)
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: "h1"}}
	n.Spec.OrchRefs = []model.OrchRef{{NodeName: "h1", Orchestrator: "k8s"}}
	p := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}}
	p.Spec.CIDR = "10.9.0.0/16"
	config := settings.Default()
	config.Spec.Controllers.Node.LeakGracePeriod = &metav1.Duration{Duration: time.Second}
	for _, o := range []*model.Object{model.NewObject(model.ResourceKey(model.KindNode, "h1"), n),
		model.NewObject(model.ResourceKey(model.KindIPPool, "pool"), p), model.NewObject(configKey, config)} {
		if _, err := store.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	allocator := ipam.New(store, nil, nil)
	for _, pod := range []string{"gone", "there"} {
		r, err := allocator.AutoAssign(t.Context(), ipam.Request{Host: "h1", Handle: "k8s-pod-network." + pod, Num4: 1,
			Use:   "Workload",
			Attrs: map[string]string{"node": "h1", "pod": pod, "namespace": "shop"}})
		if err != nil {
			t.Fatal(err)
		}
		if pod == "there" {
			w := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "h1-k8s-there-eth0", Namespace: "shop"}}
			w.Spec.Node, w.Spec.Orchestrator, w.Spec.Pod, w.Spec.Endpoint = "h1", "k8s", "there", "eth0"
			w.Spec.IPNetworks = []string{r.V4.Addresses[0].Addr().String() + "/32"}
			source.Put(model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: w.Name}, w))
		}
	}
	c := start(t, server, "n1", source, &kube{}, nil)
	calicotest.Eventually(t, "the address is released", func() bool {
		_, err := store.Get(context.Background(), model.HandleKey("k8s-pod-network.gone"))
		return err != nil
	})
	if _, err := store.Get(t.Context(), model.HandleKey("k8s-pod-network.there")); err != nil {
		t.Error("an address in use was released:", err)
	}
	calicotest.Eventually(t, "the release is explained", func() bool { return len(c.Releases()) == 1 })
	if got := c.Releases()[0].Text(); got != "pod shop/gone does not exist" {
		t.Error(got)
	}
}
