package loadbalancer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/ipam"
)

// cluster is a Kubernetes API with services, and a datastore with pools.
type cluster struct {
	t     *testing.T
	core  corev1client.CoreV1Interface
	store datastore.Store
}

func pool(name, cidr string, manual bool) *model.Object {
	p := aPool(cidr, manual)
	p.Name, p.Spec.NodeSelector, p.Spec.BlockSize = name, "all()", 28
	o := model.NewObject(model.ResourceKey(model.KindIPPool, name), p)
	info, _ := model.Lookup(model.KindIPPool)
	validation.Default(info.Kind, p)
	return o
}

func newCluster(t *testing.T, store datastore.Store, core corev1client.CoreV1Interface) *cluster {
	c := &cluster{t: t, core: core, store: store}
	for _, o := range []*model.Object{pool("a", "10.46.0.0/24", false), pool("b", "10.47.0.0/24", true)} {
		if _, err := store.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// startLeader runs a controller until stop is called.
func (c *cluster) startLeader(through datastore.Store, requestedOnly bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	tables := datastore.NewTables(zap.NewNop(), "")
	go func() { _ = tables.Run(ctx, through, model.KindIPPool, model.KindIPAMBlock) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l := &Controller{Services: c.core, IPAM: ipam.New(through, nil, nil), Log: zap.NewNop(), Now: time.Now,
			RequestedOnly: requestedOnly, Retry: 50 * time.Millisecond}
		_ = l.Run(ctx, tables)
	}()
	return func() { cancel(); <-done }
}

func (c *cluster) create(name string, annotations map[string]string) *corev1.Service {
	c.t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations}}
	s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeLoadBalancer, []corev1.ServicePort{{Port: 80}}
	s, err := c.core.Services("default").Create(c.t.Context(), s, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (c *cluster) delete(name string) {
	c.t.Helper()
	if err := c.core.Services("default").Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// addresses returns the addresses in a service's status, in order.
func (c *cluster) addresses(name string) (list []string) {
	s, err := c.core.Services("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	for _, i := range s.Status.LoadBalancer.Ingress {
		list = append(list, i.IP)
	}
	slices.Sort(list)
	return list
}

// assigned returns the addresses by handle, as the datastore has them.
func (c *cluster) assigned() map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	list, _, _ := c.store.List(context.Background(), model.KindIPAMBlock, "")
	for _, o := range list {
		for a := range ipam.Allocations(o.Value.(*model.Block)) {
			all[a.Handle] = append(all[a.Handle], a.Address)
		}
	}
	return all
}

func apiServer(t *testing.T) *apiserver.Server { return apiserver.Start(t) }

func coreClient(t *testing.T, s *apiserver.Server) corev1client.CoreV1Interface {
	core, err := corev1client.NewForConfig(s.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "namespace default is there", func() bool {
		_, err := core.Namespaces().Get(context.Background(), "default", metav1.GetOptions{})
		return err == nil
	})
	return core
}

// The real API and a real etcd.
func TestServices(t *testing.T) {
	core := coreClient(t, apiServer(t))
	c := newCluster(t, etcdtest.Start(t).Store(t), core)
	stop := c.startLeader(c.store, false)
	defer func() { stop() }()
	plain := c.create("plain", nil)
	c.create("asks", map[string]string{annotationAddresses: `["10.46.0.20"]`})
	c.create("manual", map[string]string{annotationPools4: `["b"]`})
	calicotest.Eventually(t, "all have addresses", func() bool {
		return len(c.addresses("plain")) == 1 && slices.Equal(c.addresses("asks"), []string{"10.46.0.20"}) &&
			len(c.addresses("manual")) == 1
	})
	if a := netip.MustParseAddr(c.addresses("manual")[0]); !netip.MustParsePrefix("10.47.0.0/24").Contains(a) {
		t.Errorf("%s is of another pool", a)
	}
	handle := handle("default", "plain", string(plain.UID))
	if got := c.assigned()[handle]; len(got) != 1 || got[0].String() != c.addresses("plain")[0] {
		t.Errorf("assigned %v, shown %v", got, c.addresses("plain"))
	}
	// Another address, then the service goes and comes again.
	s, _ := core.Services("default").Get(t.Context(), "asks", metav1.GetOptions{})
	s.Annotations[annotationAddresses] = `["10.46.0.21"]`
	if _, err := core.Services("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "the new address is shown",
		func() bool { return slices.Equal(c.addresses("asks"), []string{"10.46.0.21"}) })
	c.delete("plain")
	calicotest.Eventually(t, "its address is free", func() bool { return len(c.assigned()[handle]) == 0 })
	// No controller runs while services change.
	stop()
	c.delete("asks")
	c.create("asks", nil)
	c.create("late", nil)
	stop = c.startLeader(c.store, true)
	calicotest.Eventually(t, "only services that ask have addresses", func() bool {
		return len(c.assigned()) == 1 && len(c.addresses("asks")) == 0 && len(c.addresses("manual")) == 1
	})
	s, _ = core.Services("default").Get(t.Context(), "manual", metav1.GetOptions{})
	s.Spec.Type = corev1.ServiceTypeClusterIP
	if _, err := core.Services("default").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "a service that is no load balancer any more has none",
		func() bool { return len(c.assigned()) == 0 })
}

// Two controllers at once, of which one is killed after some write, and another one takes over: each service ends with
// one address, which is shown, and nothing else is assigned.
func TestKilledAndTwoAtOnce(t *testing.T) {
	core := coreClient(t, apiServer(t))
	for n := 1; n <= 16; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			store := memory.New()
			c := newCluster(t, store, core)
			crashing := memory.NewCrashingStore(store, n)
			first, second := c.startLeader(crashing, false), c.startLeader(store, false)
			names := []string{fmt.Sprint("x", n), fmt.Sprint("y", n)}
			for _, name := range names {
				c.create(name, nil)
			}
			if n%2 == 0 {
				c.delete(names[1])
				names = names[:1]
			}
			select {
			case <-crashing.Dead:
			case <-time.After(500 * time.Millisecond): // the other one was faster
			}
			first()
			second()
			third := c.startLeader(store, false)
			defer third()
			calicotest.Eventually(t, "each service has one address", func() bool {
				all := c.assigned()
				for _, name := range names {
					s, err := core.Services("default").Get(context.Background(), name, metav1.GetOptions{})
					if err != nil {
						return false
					}
					got := all[handleOf(s)]
					if len(got) != 1 || !slices.Equal(c.addresses(name), []string{got[0].String()}) {
						return false
					}
				}
				return len(all) == len(names)
			})
			for _, name := range names {
				c.delete(name)
			}
			calicotest.Eventually(t, "nothing is left", func() bool { return len(c.assigned()) == 0 })
		})
	}
}

// Calico's controller uses these names of handles.
func TestHandle(t *testing.T) {
	for _, x := range [][3]string{
		{"back", "b8e6bdee-34a8-4902-a825-4bdb3af1874b", "lb-0aWi6QEnE9LuV0M2tzPgixZXLrRMINJD2M8l2EkG1Y"},
		{"front", "4a2a184e-7d62-4134-9965-d66e16b49109", "lb-0Elgd3nzXaRZAX5JyKbSs5lYCZC1b6wa07h7iDrFou8"},
	} {
		if got := handle("shop", x[0], x[1]); got != x[2] {
			t.Errorf("%s: %s, want %s", x[0], got, x[2])
		}
	}
}
