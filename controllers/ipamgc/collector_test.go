package ipamgc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// settle evaluates everything until the grace period of each finding is over.
func (w *world) settle(l *leader) {
	w.t.Helper()
	for range 4 {
		if err := l.runPass(true, 0); err != nil {
			w.t.Fatal(err)
		}
		w.now = w.now.Add(grace + time.Second)
	}
}

func (w *world) wantAssigned(addresses ...netip.Addr) {
	w.t.Helper()
	have := w.assigned()
	for _, a := range addresses {
		if have[a] == "" {
			w.t.Errorf("%s was released", a)
		}
		delete(have, a)
	}
	if len(have) > 0 {
		w.t.Errorf("still assigned: %v", have)
	}
}

// The rules of Calico's garbage collection, one by one.
func TestRules(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(w *world, a netip.Addr) // of a pod "web" that runs on n1 with a
		reason Reason                       // empty: kept
		grace  bool                         // only after the grace period
	}{
		{"a pod that runs keeps its address", func(*world, netip.Addr) {}, "", false},
		{"a pod that is gone, on a node that is there", func(w *world, _ netip.Addr) { w.removePod("web") }, podGone,
			true},
		{"a pod of that name on another node", func(w *world, a netip.Addr) {
			w.setPod(newPod("web", "n2", a.Next()))
		}, podMoved, true},
		{"a pod with another address", func(w *world, a netip.Addr) { w.setPod(newPod("web", "n1", a.Next())) },
			addressUnused, true},
		{"a pod that ended", func(w *world, a netip.Addr) {
			p := newPod("web", "n1", a)
			p.Status.Phase = "Succeeded"
			w.setPod(p)
		}, addressUnused, true},
		{"a new pod of that name that has no address yet", func(w *world, _ netip.Addr) {
			w.setPod(newPod("web", "n1"))
		}, "", false},
		{"a new pod of that name that no node was chosen for", func(w *world, _ netip.Addr) {
			p := newPod("web", "n1")
			p.Spec.NodeName = ""
			w.setPod(p)
		}, "", false},
		{"a pod whose status lags behind the plugin's note", func(w *world, a netip.Addr) {
			p := newPod("web", "n1", a.Next())
			p.Annotations = map[string]string{"cni.projectcalico.org/podIPs": a.String() + "/32"}
			w.setPod(p)
		}, "", false},
		{"a pod whose endpoint in Calico's datastore has the address", func(w *world, a netip.Addr) {
			w.setPod(newPod("web", "n1", a.Next()))
			e := &model.WorkloadEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "n1-k8s-web-eth0", Namespace: "default"}}
			e.Spec.IPNetworks = []string{a.String() + "/32"}
			w.store.Put(model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: e.Name},
				e))
		}, "", false},
		{"a pod that is gone, and its node too", func(w *world, _ netip.Addr) {
			w.removePod("web")
			w.removeNode("n1")
		}, podGone, false},
		{"a pod that is gone, on a node that only Kubernetes has lost", func(w *world, _ netip.Addr) {
			w.removePod("web")
			w.source.Remove(model.ResourceKey(model.KindNode, kubernetesName("n1")))
		}, podGone, false},
		{"a node that is gone while its pod is there", func(w *world, _ netip.Addr) { w.removeNode("n1") }, "", false},
		{"a node that is not Kubernetes'", func(w *world, _ netip.Addr) {
			w.removePod("web")
			w.store.Put(model.NewObject(model.ResourceKey(model.KindNode, "n1"),
				&model.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
		}, "", false},
		{"a node that cannot be read", func(w *world, _ netip.Addr) {
			w.removePod("web")
			o := model.NewObject(model.ResourceKey(model.KindNode, "n1"),
				&model.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			o.Err = errors.New("not valid")
			w.store.Put(o)
		}, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, "n1", "n2")
			a := w.assign("web", "n1", "aaa")
			w.setPod(newPod("web", "n1", a))
			l := w.newLeader(w.store)
			if err := l.runPass(true, 0); err != nil {
				t.Fatal(err)
			}
			test.change(w, a)
			_ = l.runPass(false, 0)
			if test.grace || test.reason == "" {
				w.wantAssigned(a)
			}
			w.now = w.now.Add(grace - time.Second)
			_ = l.runPass(true, 0)
			if test.grace || test.reason == "" {
				w.wantAssigned(a)
			}
			w.now = w.now.Add(2 * time.Second)
			_ = l.runPass(true, 0)
			if test.reason == "" {
				w.wantAssigned(a)
				if got := l.Releases.Last(); len(got) > 0 {
					t.Errorf("released %+v", got)
				}
				return
			}
			w.wantAssigned()
			got := slices.DeleteFunc(l.Releases.Last(), func(r Release) bool { return r.Block.IsValid() })
			if len(got) != 1 || got[0].Reason != test.reason || got[0].Address != a || got[0].Pod != "web" {
				t.Errorf("releases %+v, want %s for %s", got, test.reason, a)
			}
		})
	}
}

func TestOtherAllocations(t *testing.T) {
	w := newWorld(t, "n1", "n2")
	ctx := context.Background()
	assign := func(handle string, attrs map[string]string) netip.Addr {
		t.Helper()
		r, err := w.ipam.AutoAssign(ctx, ipam.Request{Host: "n1", Handle: handle, Num4: 1, Use: "Workload",
			Attrs: attrs})
		if err != nil {
			t.Fatal(err)
		}
		return r.V4.Addresses[0].Addr()
	}
	bare := assign("net1.container", map[string]string{"node": "n1"})
	vm := assign("k8s-pod-network.vmi.default.vm", map[string]string{"node": "n1", "pod": "virt-launcher",
		"namespace": "default", "vmi-name": "vm"})
	gone := assign("k8s-pod-network.gone", map[string]string{"node": "n1", "pod": "gone", "namespace": "default"})
	w.vms["default/vm"] = true
	tunnel := w.tunnel("n1")
	l := w.newLeader(w.store)
	w.settle(l)
	w.wantAssigned(bare, vm, tunnel)
	w.removeNode("n1")
	w.settle(l)
	w.wantAssigned(bare, vm, tunnel) // an address of no pod keeps the node
	if len(l.Releases.Last()) != 1 || l.Releases.Last()[0].Address != gone {
		t.Errorf("releases %+v", l.Releases.Last())
	}
}

func TestAllAddressesOfAHandleTogether(t *testing.T) {
	w := newWorld(t, "n1")
	first := w.assign("web", "n1", "aaa")
	second := w.assign("web", "n1", "aaa") // an ADD after an ADD
	w.setPod(newPod("web", "n1", first))
	l := w.newLeader(w.store)
	w.settle(l)
	w.wantAssigned(first, second)
	w.removePod("web")
	w.settle(l)
	w.wantAssigned()
}

func TestDeadNode(t *testing.T) {
	w := newWorld(t, "n1", "n2")
	a, b := w.assign("web", "n1", "aaa"), w.assign("db", "n2", "bbb")
	w.setPod(newPod("web", "n1", a))
	w.setPod(newPod("db", "n2", b))
	tunnel := w.tunnel("n1")
	l := w.newLeader(w.store)
	w.removeNode("n1")
	w.settle(l)
	w.wantAssigned(a, b, tunnel) // its pod is still there
	w.removePod("web")
	w.settle(l)
	w.wantAssigned(b)
	for _, line := range w.summary() {
		if strings.Contains(line, "n1") {
			t.Error("left of n1:", line)
		}
	}
	if got := l.Releases.Last(); len(got) != 3 || got[1].Reason != nodeGone || got[1].Address != tunnel ||
		got[2].Text() != "node n1 does not exist, and no address of the block is in use" || !got[2].Block.Contains(a) {
		t.Errorf("releases %+v", got)
	}
}

func TestSurplusBlocks(t *testing.T) {
	w := newWorld(t, "n1")
	var all []netip.Addr
	for i := range 40 { // three blocks of 16
		name := fmt.Sprint("p", i)
		a := w.assign(name, "n1", name)
		w.setPod(newPod(name, "n1", a))
		all = append(all, a)
	}
	l := w.newLeader(w.store)
	for i := range all {
		w.removePod(fmt.Sprint("p", i))
		if _, err := w.ipam.ReleaseByHandle(context.Background(), fmt.Sprint("k8s-pod-network.p", i)); err != nil {
			t.Fatal(err)
		}
	}
	blocks := func() int {
		list, _, _ := w.store.List(context.Background(), model.KindIPAMBlock, "")
		return len(list)
	}
	if err := l.runPass(true, 0); err != nil || blocks() != 3 {
		t.Fatalf("%d blocks after the first look, %v", blocks(), err)
	}
	w.now = w.now.Add(grace / 2)
	if err := l.runPass(true, 0); err != nil || blocks() != 3 {
		t.Fatalf("%d blocks within the grace period, %v", blocks(), err)
	}
	w.now = w.now.Add(grace)
	if err := l.runPass(true, 0); err != nil || blocks() != 1 {
		t.Fatalf("%d blocks at last, want the one that a node keeps; %v", blocks(), err)
	}
	if got := l.Releases.Last(); len(got) != 2 || got[0].Reason != surplus || !got[0].Since.Before(got[0].At) ||
		got[0].Text() != "the block was empty for the grace period, and node n1 has another one" {
		t.Errorf("releases %+v", got)
	}
}

func TestGraceZeroReleasesNothingOnLiveNodes(t *testing.T) {
	w := newWorld(t, "n1", "n2")
	a, b := w.assign("web", "n1", "aaa"), w.assign("db", "n2", "bbb")
	l := w.newLeader(w.store)
	l.Grace = 0
	w.removeNode("n2")
	for range 3 {
		if err := l.runPass(true, 0); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(time.Hour)
	}
	w.wantAssigned(a)
	_ = b
}

func TestColdAddresses(t *testing.T) {
	w := newWorld(t, "n1")
	seconds := 600
	w.store.Put(model.NewObject(model.IPAMConfigKey,
		&model.IPAMConfig{AutoAllocateBlocks: true, IPCooldownSeconds: &seconds}))
	a, b := w.assign("web", "n1", "aaa"), w.assign("db", "n1", "bbb")
	w.setPod(newPod("db", "n1", b))
	if _, err := w.ipam.ReleaseByHandle(context.Background(), "k8s-pod-network.aaa"); err != nil {
		t.Fatal(err)
	}
	l := w.newLeader(w.store)
	free := func() int {
		list, _, _ := w.store.List(context.Background(), model.KindIPAMBlock, "")
		return len(list[0].Value.(*model.Block).Unallocated)
	}
	if err := l.runPass(true, 0); err != nil || free() != 14 {
		t.Fatalf("%d free before %s has cooled down, %v", free(), a, err)
	}
	w.now = w.now.Add(11 * time.Minute)
	if err := l.runPass(false, 0); err != nil || free() != 15 {
		t.Fatalf("%d free, want %s too; %v", free(), a, err)
	}
}

// A kill after any write leaves a state from which the next leader reaches the same end.
func TestKilledAfterEachWrite(t *testing.T) {
	build := func() *world {
		w := newWorld(t, "n1", "n2")
		for i := range 20 {
			name := fmt.Sprint("p", i)
			a := w.assign(name, "n1", name)
			if i == 3 {
				w.setPod(newPod(name, "n1", a))
			}
		}
		w.assign("x", "n2", "x")
		w.assign("y", "n2", "y")
		w.tunnel("n2")
		w.removeNode("n2")
		return w
	}
	w := build()
	before := w.store.Writes()
	w.settle(w.newLeader(w.store))
	want, writes := w.summary(), w.store.Writes()-before
	if writes < 20 || len(want) > 10 {
		t.Fatalf("undisturbed: %d writes, %q", writes, want)
	}
	for n := 1; n <= writes; n++ {
		w := build()
		crashing := memory.NewCrashingStore(w.store, n)
		first := w.newLeader(crashing)
		for range 4 {
			_ = first.runPass(true, 0)
			w.now = w.now.Add(grace + time.Second)
		}
		if !crashing.Killed() {
			t.Fatalf("killed after write %d: it was not", n)
		}
		w.settle(w.newLeader(w.store))
		if got := w.summary(); !slices.Equal(got, want) {
			t.Fatalf("killed after write %d:\n got %q\nwant %q", n, got, want)
		}
	}
}

func TestAddressAssignedAnewIsNotReleased(t *testing.T) {
	w := newWorld(t, "n1")
	a := w.assign("old", "n1", "aaa")
	l := w.newLeader(w.store)
	if err := l.runPass(true, 0); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(grace + time.Second)
	// The plugin releases it at last, and another pod gets it; the collector has not seen that.
	if _, err := w.ipam.ReleaseByHandle(context.Background(), "k8s-pod-network.aaa"); err != nil {
		t.Fatal(err)
	}
	if err := w.ipam.AssignIP(context.Background(),
		ipam.AddressRequest{Address: a, Host: "n1", Handle: "k8s-pod-network.new",
			Attrs: map[string]string{"node": "n1", "pod": "new", "namespace": "default"}}); err != nil {
		t.Fatal(err)
	}
	if err := l.runPass(true, 1000); err != nil {
		t.Fatal(err)
	}
	w.wantAssigned(a)
}

func TestAPIThatDoesNotAnswerKeepsEverything(t *testing.T) {
	w := newWorld(t, "n1")
	a := w.assign("web", "n1", "aaa")
	l := w.newLeader(w.store)
	l.Pods = silent{}
	for range 4 {
		_ = l.runPass(true, 0)
		w.now = w.now.Add(grace + time.Second)
	}
	w.wantAssigned(a)
	l.Pods = w
	w.settle(l)
	w.wantAssigned()
}

type silent struct{}

func (silent) Pod(context.Context, string, string) (*model.Pod, error) {
	return nil, fmt.Errorf("the API does not answer: %w", datastore.ErrUnavailable)
}

func (silent) VirtualMachine(context.Context, string, string) (bool, error) {
	return false, fmt.Errorf("the API does not answer: %w", datastore.ErrUnavailable)
}

func TestMetrics(t *testing.T) {
	w := newWorld(t, "n1", "n2")
	a := w.assign("web", "n1", "aaa")
	w.setPod(newPod("web", "n1", a))
	w.assign("gone", "n1", "bbb")
	w.tunnel("n2")
	l := w.newLeader(w.store)
	if err := l.runPass(true, 0); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(l.Collector, l.Releases)
	want := `
# HELP ipam_allocations_gc_candidates Addresses that look unused.
# TYPE ipam_allocations_gc_candidates gauge
ipam_allocations_gc_candidates{ippool="pool",node="n1"} 1
# HELP ipam_allocations_in_use Addresses that workloads and tunnel devices have.
# TYPE ipam_allocations_in_use gauge
ipam_allocations_in_use{ippool="pool",node="n1"} 2
ipam_allocations_in_use{ippool="pool",node="n2"} 1
# HELP ipam_ippool_size Addresses of the IP pool.
# TYPE ipam_ippool_size gauge
ipam_ippool_size{ippool="pool"} 65536
`
	names := []string{"ipam_allocations_gc_candidates", "ipam_allocations_in_use", "ipam_ippool_size"}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	w.settle(l)
	want = `
# HELP ipam_allocations_gc_reclamations Unused addresses that were released.
# TYPE ipam_allocations_gc_reclamations counter
ipam_allocations_gc_reclamations{ippool="pool",node="n1"} 1
# HELP manx_controllers_released_addresses_total Unused addresses that were released, by reason.
# TYPE manx_controllers_released_addresses_total counter
manx_controllers_released_addresses_total{reason="pod-gone"} 1
`
	names = []string{"ipam_allocations_gc_reclamations", "manx_controllers_released_addresses_total"}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

// sandbox is a running pod's network with its address.
type sandbox struct {
	node, container string
	address         netip.Addr
}

// Two leaders at once, each of which may lag behind, never release the address of a sandbox of an existing pod. When
// all changes have ended, no other address is left.
func TestTwoLeadersNeverReleaseWhatIsInUse(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { twoLeaders(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

func twoLeaders(t *testing.T, r *rand.Rand) {
	nodes := []string{"n1", "n2", "n3"}
	w := newWorld(t, nodes...)
	leaders := []*leader{w.newLeader(w.store), w.newLeader(w.store)}
	running := map[string]*sandbox{}
	pass := func() {
		l := leaders[r.IntN(2)]
		_ = l.runPass(r.IntN(2) == 0, r.IntN(4)*r.IntN(12))
		have := w.assigned()
		for pod, s := range running {
			if have[s.address] != "k8s-pod-network."+s.container {
				t.Fatalf("%s of pod %s was released", s.address, pod)
			}
		}
	}
	for step := range 250 {
		name := fmt.Sprint("p", r.IntN(6))
		switch s := running[name]; r.IntN(9) {
		case 0, 1: // a sandbox, of a new or an existing pod; the one before may leak its address
			node, known := nodes[r.IntN(3)], newPod(name, "n1")
			if s != nil {
				node, known = s.node, w.pods["default/"+name]
			} else if p := w.pods["default/"+name]; p != nil {
				known, node = p, strings.TrimSuffix(p.Spec.NodeName, ".example.test")
			} else {
				known.Spec.NodeName = kubernetesName(node)
				w.setPod(known)
			}
			if _, err := w.store.Get(context.Background(), model.ResourceKey(model.KindNode, node)); err != nil {
				continue // nothing starts on a node that does not exist
			}
			container := fmt.Sprint(name, "-", step)
			next := &sandbox{node: node, container: container, address: w.assign(name, node, container)}
			delete(running, name)
			pass() // the plugin has not noted it yet
			p := *known
			p.Annotations = map[string]string{"cni.projectcalico.org/podIP": next.address.String() + "/32"}
			w.setPod(&p)
			running[name] = next
		case 2: // the kubelet reports
			if p := w.pods["default/"+name]; p != nil && s != nil {
				q := newPod(name, s.node, s.address)
				q.Annotations = p.Annotations
				w.setPod(q)
			}
		case 3: // the pod ends, with or without a release
			if s != nil && r.IntN(2) == 0 {
				_, _ = w.ipam.ReleaseByHandle(context.Background(), "k8s-pod-network."+s.container)
			}
			delete(running, name)
			w.removePod(name)
		case 4:
			if r.IntN(4) == 0 {
				w.removeNode(nodes[r.IntN(3)])
			}
		case 5:
			if n := nodes[r.IntN(3)]; r.IntN(2) == 0 {
				w.addNode(n)
			}
		case 6:
			w.now = w.now.Add(time.Duration(r.IntN(20)) * time.Minute)
		default:
			pass()
		}
	}
	for _, n := range nodes {
		w.addNode(n)
	}
	for key := range w.pods {
		if name := strings.TrimPrefix(key, "default/"); running[name] == nil {
			w.removePod(name)
		}
	}
	var want []netip.Addr
	for pod, s := range running {
		w.setPod(newPod(pod, s.node, s.address))
		want = append(want, s.address)
	}
	for _, l := range leaders {
		w.settle(l)
	}
	w.wantAssigned(want...)
}
