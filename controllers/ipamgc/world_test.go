package ipamgc

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
	"github.com/manxnet/manx/ipam"
)

const grace = 15 * time.Minute

// world is a cluster with its Calico objects in one store and its Kubernetes objects in another.
type world struct {
	t             *testing.T
	store, source *memory.Store
	pods          map[string]*model.Pod // "namespace/name", as the API has them
	vms           map[string]bool       // "namespace/name" of virtual machines that exist
	noVMs         error                 // the error of a query for one
	ipam          *ipam.Allocator
	now           time.Time
}

func newWorld(t *testing.T, nodes ...string) *world {
	w := &world{t: t, store: memory.New(), source: memory.New(), pods: map[string]*model.Pod{},
		vms: map[string]bool{},
		now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w.ipam = ipam.New(w.store, nil, w.clock)
	w.store.Put(pool("pool", "10.1.0.0/16", 28, v3.IPPoolAllowedUseWorkload, v3.IPPoolAllowedUseTunnel))
	for _, n := range nodes {
		w.addNode(n)
	}
	return w
}

func pool(name, cidr string, blockSize int, uses ...v3.IPPoolAllowedUse) *model.Object {
	p := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.CIDR, p.Spec.BlockSize, p.Spec.AllowedUses, p.Spec.NodeSelector = cidr, blockSize, uses, "all()"
	o := model.NewObject(model.ResourceKey(model.KindIPPool, name), p)
	info, _ := model.Lookup(model.KindIPPool)
	validation.Default(info.Kind, p)
	return o
}

func (w *world) clock() time.Time { return w.now }

// kubernetesName differs from Calico's, as it may in etcd.
func kubernetesName(node string) string { return node + ".example.test" }

func (w *world) addNode(name string) {
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.OrchRefs = []model.OrchRef{{NodeName: kubernetesName(name), Orchestrator: "k8s"}}
	w.store.Put(model.NewObject(model.ResourceKey(model.KindNode, name), n))
	k := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: kubernetesName(name)}}
	w.source.Put(model.NewObject(model.ResourceKey(model.KindNode, kubernetesName(name)), k))
}

// removeNode removes a node from both, as Kubernetes and the deleter do one after the other.
func (w *world) removeNode(name string) {
	w.source.Remove(model.ResourceKey(model.KindNode, kubernetesName(name)))
	w.store.Remove(model.ResourceKey(model.KindNode, name))
}

// Pod implements Pods.
func (w *world) Pod(_ context.Context, namespace, name string) (*model.Pod, error) {
	p, ok := w.pods[namespace+"/"+name]
	if !ok {
		return nil, fmt.Errorf("pod %s/%s %w", namespace, name, datastore.ErrNotFound)
	}
	return p, nil
}

// VirtualMachine implements Pods.
func (w *world) VirtualMachine(_ context.Context, namespace, name string) (bool, error) {
	return w.vms[namespace+"/"+name], w.noVMs
}

// setPod makes the API show a pod, and the source the endpoint that follows from it.
func (w *world) setPod(p *model.Pod) {
	w.dropEndpoint(p.Name)
	w.pods["default/"+p.Name] = p
	e, _, err := conversion.Pod(p, "cali")
	if err != nil {
		w.t.Fatal(err)
	}
	if e != nil {
		w.source.Put(model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: e.Name},
			e))
	}
}

func (w *world) dropEndpoint(pod string) {
	list, _, _ := w.source.List(context.Background(), model.KindWorkloadEndpoint, "")
	for _, o := range list {
		if o.Workload().Pod == pod {
			w.source.Remove(o.Key)
		}
	}
}

func (w *world) removePod(name string) {
	delete(w.pods, "default/"+name)
	w.dropEndpoint(name)
}

func newPod(name, node string, ips ...netip.Addr) *model.Pod {
	p := &model.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	p.Spec.NodeName = kubernetesName(node)
	for _, ip := range ips {
		p.Status.PodIP = ips[0].String()
		p.Status.PodIPs = append(p.Status.PodIPs, model.PodIP{IP: ip.String()})
		p.Status.Phase = "Running"
	}
	return p
}

// assign gives a pod's sandbox an address, as the CNI plugin does.
func (w *world) assign(pod, node, container string) netip.Addr {
	w.t.Helper()
	r, err := w.ipam.AutoAssign(context.Background(), ipam.Request{Host: node, Handle: "k8s-pod-network." + container,
		Num4: 1, Use: v3.IPPoolAllowedUseWorkload, Attrs: map[string]string{"node": node, "pod": pod,
			"namespace": "default"}})
	if err == nil {
		err = r.Short()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return r.V4.Addresses[0].Addr()
}

func (w *world) tunnel(node string) netip.Addr {
	w.t.Helper()
	r, err := w.ipam.AutoAssign(context.Background(), ipam.Request{Host: node, Handle: "ipip-tunnel-addr-" + node,
		Num4: 1,
		Use:  v3.IPPoolAllowedUseTunnel, Attrs: map[string]string{"node": node, "type": "ipipTunnelAddress"}})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.V4.Addresses[0].Addr()
}

// assigned returns the handles by address, as the store has them.
func (w *world) assigned() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	list, _, _ := w.store.List(context.Background(), model.KindIPAMBlock, "")
	for _, o := range list {
		for a := range ipam.Allocations(o.Value.(*model.Block)) {
			all[a.Address] = a.Handle
		}
	}
	return all
}

// summary returns all objects of IPAM, without the fields that differ from run to run.
func (w *world) summary() []string {
	var text []string
	for a, h := range w.assigned() {
		text = append(text, fmt.Sprintf("%s %s", a, h))
	}
	for _, kind := range []model.Kind{model.KindIPAMBlock, model.KindBlockAffinity, model.KindIPAMHandle} {
		list, _, _ := w.store.List(context.Background(), kind, "")
		for _, o := range list {
			line := o.Key.String()
			switch v := o.Value.(type) {
			case *model.Block:
				owner, _ := ipam.OwnerOf(v)
				line += " of " + owner.String()
			case *model.BlockAffinity:
				line += " " + string(v.State)
			case *model.Handle:
				for _, b := range slices.Sorted(maps.Keys(v.Block)) {
					line += fmt.Sprintf(" %s=%d", b, v.Block[b])
				}
			}
			text = append(text, line)
		}
	}
	slices.Sort(text)
	return text
}

// leader is a collector with a limited view of the world.
type leader struct {
	*Collector
	store, source  *memory.View
	was, wasSource *datastore.Snapshot
}

// newLeader makes a collector that writes through a store.
func (w *world) newLeader(through datastore.Store) *leader {
	c := &Collector{Store: through, Source: w.source, Pods: w, IPAM: ipam.New(through, nil, w.clock), Log: zap.NewNop(),
		Now: w.clock, Grace: grace, Releases: NewReleases()}
	c.reset()
	return &leader{Collector: c, store: memory.NewView(w.store), source: memory.NewView(w.source)}
}

// runPass runs one pass that has seen all but the last lag events.
func (l *leader) runPass(full bool, lag int) error {
	l.store.CatchUp(lag)
	l.source.CatchUp(lag)
	now, nowSource := l.store.Tables.Snapshot(), l.source.Tables.Snapshot()
	l.take(now.Changes(l.was), nowSource.Changes(l.wasSource))
	l.was, l.wasSource = now, nowSource
	return l.pass(context.Background(), now, nowSource, full)
}
