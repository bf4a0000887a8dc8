package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/endpoints"
	"github.com/manxnet/manx/controllers/hostendpoints"
	"github.com/manxnet/manx/controllers/loop"
	"github.com/manxnet/manx/controllers/memory"
	"github.com/manxnet/manx/controllers/mirror"
	"github.com/manxnet/manx/controllers/nodes"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// inKubernetes returns the Kubernetes cluster for which calico-kube-controllers wrote the content of the goldens.
func inKubernetes() []*model.Object {
	var list []*model.Object
	for _, name := range []string{"default", "kube-node-lease", "kube-public", "kube-system", "shop"} {
		n := &model.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"kubernetes.io/metadata.name": name}}}
		if name == "shop" {
			n.Labels["team"] = "blue"
		}
		list = append(list, model.NewObject(model.ResourceKey(model.KindNamespace, name), n))
	}
	for _, x := range [][2]string{{"default", "default"}, {"shop", "default"}, {"shop", "labelled"},
		{"shop", "robot"}} {
		a := &model.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: x[0], Name: x[1]}}
		if x[1] == "labelled" {
			a.Labels = map[string]string{"trusted": "yes"}
		}
		list = append(list, model.NewObject(model.Key{Kind: model.KindServiceAccount, Namespace: x[0], Name: x[1]}, a))
	}
	list = append(list, denyAll("deny-all"), allowPolicy())
	for name, labels := range map[string]map[string]string{
		"h1": {"kubernetes.io/hostname": "h1", "zone": "east"}, "rr-one.example.test": {"zone": "west"},
	} {
		n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		list = append(list, model.NewObject(model.ResourceKey(model.KindNode, name), n))
	}
	return list
}

func policyKey(name string) model.Key {
	return model.Key{Kind: model.KindKubernetesNetworkPolicy, Namespace: "shop", Name: name}
}

func denyAll(name string) *model.Object {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	return model.NewObject(policyKey(name), p)
}

func allowPolicy() *model.Object {
	udp, sctp, end := corev1.ProtocolUDP, corev1.ProtocolSCTP, int32(6010)
	port := func(v intstr.IntOrString) *intstr.IntOrString { return &v }
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "let-in"}}
	p.Spec = networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "front"}},
					NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
						{Key: "team", Operator: metav1.LabelSelectorOpIn, Values: []string{"blue", "red"}}}}},
				{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.9.0.0/16"}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: port(intstr.FromInt32(80))},
				{Port: port(intstr.FromString("named")), Protocol: &udp},
				{Port: port(intstr.FromInt32(6000)), EndPort: &end, Protocol: &sctp}}}},
		Egress: []networkingv1.NetworkPolicyEgressRule{{}},
	}
	return model.NewObject(policyKey("let-in"), p)
}

// written returns the text of all objects of a kind with a matching name, without the fields that differ from run to
// run.
func written(t *testing.T, r model.Reader, kind model.Kind, fits func(string) bool) map[string]string {
	t.Helper()
	all := map[string]string{}
	for o := range r.All(kind) {
		if !fits(o.Key.Name) {
			continue
		}
		o = o.Clone()
		o.Metadata().SetUID("")
		o.Metadata().SetCreationTimestamp(metav1.Time{})
		fresh := model.NewObject(o.Key, o.Value)
		text, err := codec.Encode(fresh)
		if err != nil {
			t.Fatal(err)
		}
		all[o.Key.String()] = string(text)
	}
	return all
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if got[k] != want[k] {
			t.Errorf("%s\n got %s\nwant %s", k, got[k], want[k])
		}
		delete(got, k)
	}
	for k, text := range got {
		t.Errorf("%s should not be there: %s", k, text)
	}
}

func prefixed(p string) func(string) bool {
	return func(s string) bool { return strings.HasPrefix(s, p) }
}

func automatic(s string) bool { return strings.HasSuffix(s, "-auto-hep") }

func read(s *memory.Store) model.Reader { return memory.NewView(s).Tables.Snapshot() }

// The controllers write the same objects as Calico's.
func TestAsCalicoWrites(t *testing.T) {
	golden := calicotest.Objects(t)
	config := model.Get[model.KubeControllersConfiguration](golden, configKey)
	hosts, err := hostendpoints.New(config.Spec.Controllers.Node.HostEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	source := memory.New(inKubernetes()...)
	for _, test := range []struct {
		c    loop.Controller
		kind model.Kind
		fits func(string) bool
	}{
		{mirror.Policies(source), model.KindNetworkPolicy, prefixed("knp.default.")},
		{mirror.Namespaces(source), model.KindProfile, prefixed("kns.")},
		{mirror.ServiceAccounts(source), model.KindProfile, prefixed("ksa.")},
		{hosts, model.KindHostEndpoint, automatic},
	} {
		t.Run(test.c.Name(), func(t *testing.T) {
			want := written(t, golden, test.kind, test.fits)
			if len(want) < 2 {
				t.Fatalf("only %d goldens", len(want))
			}
			store := memory.New()
			for o := range golden.All(model.KindNode) {
				store.Put(o)
			}
			calicotest.Settle(t, test.c, store, source, store)
			compare(t, written(t, read(store), test.kind, test.fits), want)
			// And the objects that Calico has written need no change.
			store = memory.New()
			for _, kind := range []model.Kind{model.KindNode, test.kind} {
				for o := range golden.All(kind) {
					store.Put(o)
				}
			}
			calicotest.Settle(t, test.c, store, source, store)
			if n := store.Writes(); n > 0 {
				t.Errorf("%d objects of Calico's were rewritten", n)
			}
		})
	}
}

// Labels of Kubernetes' nodes come and go, and others stay.
func TestNodeLabels(t *testing.T) {
	golden := calicotest.Objects(t)
	source, store := memory.New(inKubernetes()...), memory.New()
	for o := range golden.All(model.KindNode) {
		store.Put(o)
	}
	c := &nodes.Labels{}
	calicotest.Settle(t, c, store, source, store)
	if n := store.Writes(); n > 0 {
		t.Errorf("%d Nodes that Calico has labelled were rewritten", n)
	}
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: "h1", Labels: map[string]string{"zone": "north", "new": "x"}}}
	source.Put(model.NewObject(model.ResourceKey(model.KindNode, "h1"), n))
	o, _ := store.Get(t.Context(), model.ResourceKey(model.KindNode, "h1"))
	o.Value.(*model.Node).Labels["mine"] = "stays"
	if _, err := store.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	calicotest.Settle(t, c, store, source, store)
	o, _ = store.Get(t.Context(), o.Key)
	got := o.Value.(*model.Node)
	want := map[string]string{"zone": "north", "new": "x", "mine": "stays"}
	if !maps.Equal(got.Labels, want) || got.Annotations[model.AnnotationKubeLabels] != `{"new":"x","zone":"north"}` {
		t.Errorf("labels %v, annotation %s", got.Labels, got.Annotations[model.AnnotationKubeLabels])
	}
}

// A Node and its endpoints are deleted when Kubernetes' node certainly does not exist. No other Node is deleted.
func TestNodeDeleter(t *testing.T) {
	golden := calicotest.Objects(t)
	source, store := memory.New(inKubernetes()...), memory.New()
	for _, kind := range []model.Kind{model.KindNode, model.KindWorkloadEndpoint} {
		for o := range golden.All(kind) {
			store.Put(o)
		}
	}
	c := &nodes.Deleter{Source: source}
	calicotest.Settle(t, c, store, source, store)
	if n := store.Writes(); n > 0 {
		t.Fatalf("%d deletions, want none", n)
	}
	// The tables report that it is gone, the API that it is not.
	newStaleStore := memory.New()
	calicotest.Settle(t, c, store, newStaleStore, store)
	if n := store.Writes(); n > 0 {
		t.Fatalf("%d deletions because of the tables alone", n)
	}
	source.Remove(model.ResourceKey(model.KindNode, "h1"))
	calicotest.Settle(t, c, store, source, store)
	left := map[string]bool{}
	for o := range read(store).All(model.KindNode) {
		left[o.Key.Name] = true
	}
	if left["h1"] || len(left) != 6 {
		t.Errorf("left: %v", left)
	}
	others := 0
	for _, w := range model.AllWorkloads(read(store)) {
		others++
		if w.Node == "h1" {
			t.Error("an endpoint of h1 is left")
		}
	}
	if others == 0 {
		t.Error("no endpoint is left")
	}
}

// An endpoint follows its pod's labels, ports and service account, and no other field.
func TestEndpoints(t *testing.T) {
	golden := calicotest.Objects(t)
	store, source := memory.New(), memory.New()
	key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "h1-k8s-web--1-eth0"}
	store.Put(golden.Get(key))
	store.Put(golden.Get(model.ResourceKey(model.KindNode, "h1")))
	pod := golden.Get(key).Clone()
	source.Put(pod)
	c := &endpoints.Endpoints{}
	calicotest.Settle(t, c, store, source, store)
	if n := store.Writes(); n > 0 {
		t.Errorf("an endpoint that is up to date was written %d times", n)
	}
	w := pod.Value.(*model.WorkloadEndpoint)
	w.Labels["app"], w.Spec.ContainerID, w.Spec.MAC = "other", "another", ""
	w.Spec.ServiceAccountName, w.Spec.Profiles = "labelled", []string{"kns.shop", "ksa.shop.labelled"}
	source.Put(pod)
	calicotest.Settle(t, c, store, source, store)
	o, _ := store.Get(t.Context(), key)
	got, was := o.Value.(*model.WorkloadEndpoint), golden.Get(key).Value.(*model.WorkloadEndpoint)
	if got.Labels["app"] != "other" || got.Spec.ServiceAccountName != "labelled" ||
		got.Spec.Profiles[1] != "ksa.shop.labelled" {
		t.Errorf("got %+v", got)
	}
	if got.Spec.ContainerID != was.Spec.ContainerID || got.Spec.MAC != was.Spec.MAC || got.UID != was.UID {
		t.Errorf("more was changed: %+v", got)
	}
	source.Remove(key)
	calicotest.Settle(t, c, store, source, store)
	if _, err := store.Get(t.Context(), key); err != nil {
		t.Error("the endpoint of a pod that is gone is the plugin's to delete:", err)
	}
}

// all returns the controllers that follow the tables.
func all(t *testing.T, source datastore.Store) []loop.Controller {
	hosts, err := hostendpoints.New(&model.AutoHostEndpoints{AutoCreate: "Enabled"})
	if err != nil {
		t.Fatal(err)
	}
	return []loop.Controller{mirror.Policies(source), mirror.Namespaces(source), mirror.ServiceAccounts(source), hosts,
		&nodes.Labels{}, &nodes.Deleter{Source: source}, &endpoints.Endpoints{}}
}

// newStaleStore returns a store in which each controller has an object to create, to change and to delete.
func newStaleStore(t *testing.T) (store, source *memory.Store) {
	golden := calicotest.Objects(t)
	source, store = memory.New(inKubernetes()...), memory.New()
	for _, kind := range []model.Kind{model.KindNode, model.KindWorkloadEndpoint, model.KindProfile,
		model.KindHostEndpoint} {
		for o := range golden.All(kind) {
			store.Put(o)
		}
	}
	source.Remove(model.ResourceKey(model.KindNamespace, "kube-public"))
	source.Remove(model.ResourceKey(model.KindNode, "rr-one.example.test"))
	n := &model.Node{ObjectMeta: metav1.ObjectMeta{Name: "h1", Labels: map[string]string{"zone": "north"}}}
	source.Put(model.NewObject(model.ResourceKey(model.KindNode, "h1"), n))
	key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: "h1-k8s-web--1-eth0"}
	w := golden.Get(key).Clone()
	w.Value.(*model.WorkloadEndpoint).Labels["app"] = "changed"
	source.Put(w)
	return store, source
}

func everything(t *testing.T, s *memory.Store) map[string]string {
	all := map[string]string{}
	for _, kind := range []model.Kind{model.KindNode, model.KindWorkloadEndpoint, model.KindProfile,
		model.KindHostEndpoint,
		model.KindNetworkPolicy} {
		maps.Copy(all, written(t, read(s), kind, func(string) bool { return true }))
	}
	return all
}

// After a kill at any write, the next leader brings the work to the same end.
func TestKilledAfterEachWrite(t *testing.T) {
	store, source := newStaleStore(t)
	for _, c := range all(t, source) {
		calicotest.Settle(t, c, store, source, store)
	}
	// The labels of a Node change its HostEndpoint.
	for _, c := range all(t, source) {
		calicotest.Settle(t, c, store, source, store)
	}
	want, writes := everything(t, store), store.Writes()
	if writes < 15 {
		t.Fatalf("only %d writes", writes)
	}
	for n := 1; n <= writes; n++ {
		store, source := newStaleStore(t)
		crashing := memory.NewCrashingStore(store, n)
		for range 2 {
			for _, c := range all(t, source) {
				calicotest.Settle(t, c, store, source, crashing)
			}
		}
		if !crashing.Killed() {
			t.Fatalf("not killed by write %d of %d", n, writes)
		}
		for range 2 {
			for _, c := range all(t, source) {
				calicotest.Settle(t, c, store, source, store)
			}
		}
		compare(t, everything(t, store), maps.Clone(want))
	}
}

// Controllers follow changes by their watches, two leaders at once come to the same end, and a policy that was deleted
// and created again meanwhile is not lost. The store is a real etcd.
func TestTwoLeadersFollowChanges(t *testing.T) {
	server := etcdtest.Start(t)
	source := memory.New(inKubernetes()...)
	store := server.Store(t)
	var stops []func()
	for range 2 {
		leader := server.Store(t)
		for _, c := range all(t, source) {
			stops = append(stops, calicotest.Run(t, c, leader, source))
		}
	}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	has := func(key model.Key) bool { _, err := store.Get(context.Background(), key); return err == nil }
	target := func(name string) model.Key {
		return model.Key{Kind: model.KindNetworkPolicy, Namespace: "shop", Name: "knp.default." + name}
	}
	calicotest.Eventually(t, "the policies are there", func() bool {
		return has(target("deny-all")) &&
			has(target("let-in"))
	})
	for i := range 30 {
		source.Remove(policyKey("deny-all"))
		if i%3 == 0 {
			calicotest.Eventually(t, "the policy is gone", func() bool { return !has(target("deny-all")) })
		}
		source.Put(denyAll("deny-all"))
		source.Put(denyAll(fmt.Sprint("more-", i)))
	}
	source.Remove(model.ResourceKey(model.KindNamespace, "shop"))
	calicotest.Eventually(t, "everything is as the source has it", func() bool {
		list, _, err := store.List(context.Background(), model.KindNetworkPolicy, "")
		return err == nil && len(list) == 32 && has(target("deny-all")) &&
			has(model.ResourceKey(model.KindProfile, "kns.default")) &&
			!has(model.ResourceKey(model.KindProfile, "kns.shop"))
	})
	// Another program changes our objects, and deletes them.
	o, err := store.Get(t.Context(), target("deny-all"))
	if err != nil {
		t.Fatal(err)
	}
	o.Value.(*v3.NetworkPolicy).Spec.Selector = "all()"
	if _, err := store.Update(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Delete(t.Context(), target("let-in"), 0); err != nil {
		t.Fatal(err)
	}
	calicotest.Eventually(t, "it is put right", func() bool {
		o, err := store.Get(context.Background(), target("deny-all"))
		return err == nil && o.Value.(*v3.NetworkPolicy).Spec.Selector != "all()" && has(target("let-in"))
	})
}
