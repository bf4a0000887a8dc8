package policy

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/e2e/world"
)

// sliceWorld keeps the policy of n2 in this process, in place of the daemon: EndpointSlices are objects of Kubernetes,
// and no etcd has them. All other objects come from a snapshot of the datastore.
type sliceWorld struct {
	t        *testing.T
	agent    *dataplane.PolicyAgent
	set      model.Set
	revision int64
}

// worldAt is a state with its own revision.
type worldAt struct {
	model.Set
	revision int64
}

// Revision of the state.
func (w worldAt) Revision() int64 { return w.revision }

func (c *cluster) withSlices(t *testing.T) *sliceWorld {
	t.Helper()
	must(t, c.N2.Manxd().Stop(limit))
	rules, err := nftables.Open("/run/netns/" + c.N2.Namespace)
	must(t, err)
	links, err := kernel.Open("/run/netns/" + c.N2.Namespace)
	must(t, err)
	w := &sliceWorld{t: t, set: model.Set{},
		agent: dataplane.NewPolicy(dataplane.PolicyConfig{Rules: rules, Links: links,
			Policy: policy.Config{Node: "n2"}, Logger: zap.NewNop()})}
	for path, value := range c.Raw(t, world.ResourceKeys) {
		if k, ok, err := etcd.ParsePath(path); ok && err == nil {
			w.set[k] = codec.Decode(k, []byte(value), 1)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-done
		_ = rules.Close()
		_ = links.Close()
		must(t, c.N2.StartManxd())
		awaitPolicy(t, c.N2)
	})
	return w
}

// change applies slices, those without endpoints as deletions, and waits until the kernel has the resulting rules.
func (w *sliceWorld) change(slices ...*model.Object) {
	w.t.Helper()
	w.set = maps.Clone(w.set)
	var keys []model.Key
	for _, o := range slices {
		keys = append(keys, o.Key)
		if w.set[o.Key] = o; len(o.Value.(*model.EndpointSlice).Endpoints) == 0 {
			delete(w.set, o.Key)
		}
	}
	w.revision++
	w.agent.SetState(dataplane.State{Reader: worldAt{w.set, w.revision}, Changed: keys, All: len(keys) == 0})
	eventually(w.t, func() error {
		if have := w.agent.Revision(); have < w.revision {
			return fmt.Errorf("the kernel is at change %d, want %d: %+v", have, w.revision, w.agent.Status())
		}
		return nil
	})
}

// slice returns an EndpointSlice of a service in the namespace shop.
func slice(name, service string, port int32, addresses ...netip.Addr) *model.Object {
	protocol := "UDP"
	s := &model.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{
		model.LabelServiceName: service}},
		Ports: []model.SlicePort{{Protocol: &protocol, Port: &port}}}
	for _, a := range addresses {
		if s.AddressType = "IPv4"; a.Is6() {
			s.AddressType = "IPv6"
		}
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addresses: []string{a.String()}})
	}
	return model.NewObject(model.Key{Kind: model.KindEndpointSlice, Namespace: "shop", Name: name}, s)
}

// testServiceRules: policies name services whose endpoints change, in both families, under traffic.
func (c *cluster) testServiceRules(t *testing.T) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	const one, two = 7501, 7502
	c.temporary(t, documents(t,
		world.GlobalPolicy("from-service",
			"selector: role == 'b', types: [Ingress], ingress: [{action: Allow, source: "+
				"{services: {name: clients, namespace: shop}}}]")+
			world.GlobalPolicy("to-service",
				"selector: role == 'a', types: [Egress], egress: [{action: Allow, destination: "+
					"{services: {name: web, namespace: shop}}}]"))...)
	w := c.withSlices(t)
	w.change()

	f := newFlood(time.Millisecond)
	add := func(from string, to netip.Addr, port uint16) *stream {
		return f.add(t, fmt.Sprintf("%s to %s port %d", from, to, port), c.Pods[from].Namespace, at(to, port),
			b.Namespace)
	}
	a4one, a4two, a6one, a6two := add("a", b.IP4(), one), add("a", b.IP4(), two), add("a", b.IP6(), one),
		add("a", b.IP6(), two)
	far4, far6 := add("far", b.IP4(), one), add("far", b.IP6(), one)
	open := f.add(t, "what no policy is about", a.Namespace, at(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 7503),
		a.Namespace)
	all := []*stream{a4one, a4two, a6one, a6two, far4, far6}
	f.start(t)
	f.flows(t, open)
	// step changes slices; then just those streams pass.
	step := func(when string, slices []*model.Object, pass ...*stream) {
		t.Helper()
		w.change(slices...)
		passes := map[*stream]bool{}
		for _, s := range pass {
			passes[s] = true
		}
		var stop []*stream
		for _, s := range all {
			if !passes[s] {
				stop = append(stop, s)
			}
		}
		f.checkStreams(t, when, append(pass, open), stop)
	}
	list := func(slices ...*model.Object) []*model.Object { return slices }

	step("no slice", nil)
	step("slices of IPv4", list(slice("clients4", "clients", 1, a.IP4()), slice("web4", "web", one, b.IP4())), a4one)
	since := f.rounds.Load() + 2
	step("slices of IPv6, with another port", list(slice("clients6", "clients", 1, far.IP6()),
		slice("web6", "web", two, b.IP6())), a4one, far6)
	step("one more endpoint", list(slice("clients6", "clients", 1, far.IP6(), a.IP6())), a4one, a6two, far6)
	step("the same endpoint in a second slice", list(slice("clients4-too", "clients", 1, a.IP4(), far.IP4())), a4one,
		a6two, far4, far6)
	step("one of them goes", list(slice("clients4", "clients", 1)), a4one, a6two, far4, far6)
	until := f.rounds.Load() - 1
	step("a slice goes over to another service", list(slice("web4", "web-of-others", one, b.IP4())), a6two, far4, far6)
	step("and comes back", list(slice("web4", "web", one, b.IP4())), a4one, a6two, far4, far6)
	step("another port", list(slice("web4", "web", two, b.IP4())), a4two, a6two, far4, far6)
	step("another port of the other family", list(slice("web6", "web", one, b.IP6())), a4two, a6one, far4, far6)
	step("an endpoint moves", list(slice("clients6", "clients", 1, a.IP6())), a4two, a6one, far4)
	step("all clients go", list(slice("clients6", "clients", 1), slice("clients4-too", "clients", 1)))
	f.stop()
	a4one.checkAll(t, since, until)
}
