package datastore

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// endpointOn returns a stored WorkloadEndpoint with every field set.
func endpointOn(t *testing.T, node string, n int, labels string) *model.Object {
	name := fmt.Sprintf("%s-k8s-web%d-eth0", node, n)
	o := codec.Decode(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop", Name: name}, fmt.Appendf(nil,
		`{"apiVersion":"projectcalico.org/v3","kind":"WorkloadEndpoint","metadata":{"name":%q,"namespace":"shop","labels":%s,`+
			`"annotations":{"a":"b"},"uid":"u","creationTimestamp":"2026-11-01T00:00:00Z"},"spec":{"orchestrator":"k8s","node":%q,"pod":"web%d",`+
			`"endpoint":"eth0","containerID":"c","serviceAccountName":"sa","ipNetworks":["10.0.0.%[4]d/32","fd00::%[4]d/128"],`+
			`"ipNATs":[{"internalIP":"10.0.0.%[4]d","externalIP":"192.0.2.1"}],"profiles":["kns.shop","ksa.shop.sa"],"interfaceName":"cali1",`+
			`"mac":"ee:ee:ee:ee:ee:ee","ports":[{"name":"http","protocol":"TCP","port":80,"hostPort":0,"hostIP":""}],`+
			`"allowSpoofedSourcePrefixes":["10.9.0.0/16"],"qosControls":{"ingressPacketRate":5},"unknown":1}}`, name,
		labels, node, n), 7)
	if o.Err != nil {
		t.Fatal(o.Err)
	}
	return o
}

func TestEndpointsOfOtherNodesAreReduced(t *testing.T) {
	const labels = `{"app":"web"}`
	here, there := endpointOn(t, "n1", 1, labels), endpointOn(t, "n2", 1, labels)
	tables := NewTables(zap.NewNop(), "n1")
	for _, o := range []*model.Object{here, there} {
		tables.Apply(Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: 7})
	}
	tables.Apply(Event{Type: EventInSync, Revision: 7})
	s := tables.Snapshot()
	if s.Get(here.Key) != here {
		t.Error("an endpoint of this node is not kept as it is")
	}
	got := s.Get(there.Key)
	if got.Revision != 7 || got.Raw != nil || got.Key != there.Key {
		t.Errorf("%s, revision %d and %d bytes, want %s, 7 and none", got.Key, got.Revision, len(got.Raw), there.Key)
	}
	want := there.Workload()
	want.ContainerID, want.MAC = "", ""
	if w := got.Workload(); len(w.Networks) != 2 || !reflect.DeepEqual(w, want) {
		t.Errorf("got  %+v\nwant %+v", w, want)
	}
	if _, err := codec.Encode(got); err == nil || !strings.Contains(err.Error(), "only a part") {
		t.Errorf("a reduced object is encoded: %v", err)
	}
	if _, err := codec.Encode(here); err != nil {
		t.Error(err)
	}
	if n := len(maps.Collect(model.AllWorkloads(s))); n != 2 {
		t.Errorf("%d workloads, want 2", n)
	}
}

// No stored value is lost, also unusual ones: a name with a line break, or no address.
func TestReducedEndpointsLoseNothing(t *testing.T) {
	r := reducer{node: "n1"}
	for _, change := range []func(*model.WorkloadEndpointSpec){
		func(s *model.WorkloadEndpointSpec) { s.Pod = "web\n1" },
		func(s *model.WorkloadEndpointSpec) { s.InterfaceName = "\n" },
		func(s *model.WorkloadEndpointSpec) { s.Pod, s.InterfaceName, s.IPNetworks = "", "", nil },
		func(s *model.WorkloadEndpointSpec) { s.IPNetworks = []string{"10.0.0.1/32"} },
	} {
		o := endpointOn(t, "n2", 1, "{}")
		change(&o.Value.(*model.WorkloadEndpoint).Spec)
		got, want := r.reduce(o).Workload(), o.Value.(*model.WorkloadEndpoint).Spec
		networks := strings.Trim(fmt.Sprint(got.Networks), "[]")
		if got.Pod != want.Pod || got.Interface != want.InterfaceName ||
			networks != strings.Join(want.IPNetworks, " ") {
			t.Errorf("got %q %q %q, want %q %q %q", got.Pod, got.Interface, networks, want.Pod,
				want.InterfaceName, want.IPNetworks)
		}
	}
}

func TestReducedEndpointsShareWhatIsEqual(t *testing.T) {
	r := reducer{node: "n1"}
	reduced := func(node string, n int, labels string) *model.Workload {
		return r.reduce(endpointOn(t, node, n, labels)).Workload()
	}
	a, b, c := reduced("n2", 1, `{"app":"web","x":"y"}`), reduced("n3", 2, `{"x":"y","app":"web"}`),
		reduced("n2", 3, `{"app":"web","x":"z"}`)
	same := func(a, b map[string]string) bool {
		return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
	}
	if !same(a.Labels, b.Labels) || same(a.Labels, c.Labels) || &a.Ports[0] != &b.Ports[0] {
		t.Errorf("labels %v, %v and %v: the first two must be one map, the last another", a.Labels, b.Labels, c.Labels)
	}
	if unsafe.StringData(a.Labels["app"]) != unsafe.StringData(c.Labels["app"]) ||
		unsafe.StringData(a.Node) != unsafe.StringData(c.Node) {
		t.Error("equal texts are kept twice")
	}
}

func TestWhatReducedEndpointsShareIsBounded(t *testing.T) {
	var r recent[int]
	for i := range 5 * remembrance {
		if v := r.of(fmt.Sprint(i), func() int { return i }); v != i {
			t.Fatalf("%d under %d", v, i)
		}
		if v := r.of("often", func() int { return -1 - i }); v != -1 {
			t.Fatalf("what is used all the time was made anew at %d", i)
		}
	}
	if n := len(r.now) + len(r.before); n > 2*remembrance {
		t.Errorf("%d values, want at most %d", n, 2*remembrance)
	}
}

// TestChangesThatMakeNoDifference: a version of another node's endpoint with the same kept fields is no change; every
// other version is one.
func TestChangesThatMakeNoDifference(t *testing.T) {
	tables := NewTables(zap.NewNop(), "n1")
	pod := func(node string, revision int64, change func(*model.WorkloadEndpoint)) *model.Object {
		w := endpointOn(t, node, 1, `{"app":"web"}`).Clone().Value.(*model.WorkloadEndpoint)
		w.Spec.IPNATs, w.Spec.AllowSpoofedSourcePrefixes, w.Spec.QoSControls = nil, nil, nil
		if change != nil {
			change(w)
		}
		o := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: w.Namespace,
			Name: node + "-k8s-web1-eth0"}, w)
		o.Revision = revision
		return o
	}
	kinds := []model.Kind{model.KindWorkloadEndpoint}
	there, here := pod("n2", 7, nil), pod("n1", 7, nil)
	tables.Apply(Event{Type: EventUpdate, Key: there.Key, Object: there, Revision: 7},
		Event{Type: EventUpdate, Key: here.Key, Object: here, Revision: 7},
		Event{Type: EventInSync, Revision: 7, Kinds: kinds})
	for i, c := range []struct {
		name   string
		o      *model.Object
		counts bool
	}{
		{"nothing", pod("n2", 8, nil), false},
		{"a container", pod("n2", 9, func(w *model.WorkloadEndpoint) { w.Spec.ContainerID = "d" }), false},
		{"an annotation", pod("n2", 10, func(w *model.WorkloadEndpoint) {
			w.Annotations = map[string]string{"x": "y"}
		}), false},
		{"nothing here", pod("n1", 11, nil), true},
		{"addresses", pod("n2", 12, func(w *model.WorkloadEndpoint) { w.Spec.IPNetworks = nil }), true},
		{"addresses again", pod("n2", 13, nil), true},
		{"labels", pod("n2", 14, func(w *model.WorkloadEndpoint) { w.Labels["app"] = "db" }), true},
		{"limits", pod("n2", 15, func(w *model.WorkloadEndpoint) {
			w.Spec.QoSControls = &model.QoSControls{IngressBurst: 1}
		}), true},
		{"an old version", pod("n2", 9, nil), false},
	} {
		before := tables.Snapshot()
		tables.Apply(Event{Type: EventUpdate, Key: c.o.Key, Object: c.o, Revision: c.o.Revision})
		if now := tables.Snapshot(); (now != before) != c.counts {
			t.Errorf("%d, %s: a new snapshot is %t, want %t", i, c.name, now != before, c.counts)
		}
	}
	tables.Apply(Event{Type: EventDelete, Key: there.Key, Revision: 16})
	if tables.Snapshot().Get(there.Key) != nil {
		t.Error("what was deleted is there")
	}
}

// The controllers' tables keep less than half as much of an endpoint with labels as the tables of a node, and receive
// no changes of its labels.
func TestAddressTablesKeepLittle(t *testing.T) {
	const many = 10_000
	endpoint := func(i int, version string) *model.Object {
		labels := ""
		for l := range 8 {
			labels += fmt.Sprintf(`"example.com/label-%d":"%s-of-pod-%d",`, l, version, i)
		}
		o := endpointOn(t, fmt.Sprint("n", i%100), i%250, "{"+strings.TrimSuffix(labels, ",")+"}")
		o.Key.Name = fmt.Sprintf("n%d-k8s-web%d-eth0", i%100, i)
		s := &o.Value.(*model.WorkloadEndpoint).Spec
		s.IPNetworks = []string{fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255)}
		s.IPNATs, s.AllowSpoofedSourcePrefixes, s.QoSControls = nil, nil, nil
		return o
	}
	retained := func(tables *Tables) uint64 {
		t.Helper()
		before := heap()
		for i := range many {
			o := endpoint(i, "first")
			tables.Apply(Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: 7})
		}
		tables.Apply(Event{Type: EventInSync, Revision: 7})
		defer runtime.KeepAlive(tables)
		return (heap() - before) / many
	}
	small := NewAddressTables(zap.NewNop())
	ofNode, ofController := retained(NewTables(zap.NewNop(), "here")), retained(small)
	t.Logf("bytes for an endpoint: %d and %d", ofNode, ofController)
	if ofController > ofNode/2 {
		t.Errorf("an endpoint takes %d bytes, and %d in the tables of a node: want less than half", ofController,
			ofNode)
	}
	was := small.Snapshot()
	w := was.Get(endpoint(7, "").Key).Workload()
	if w.Node != "n7" || w.Pod != "web7" || w.Networks[0].String() != "10.0.0.7/32" || len(w.Labels) > 0 {
		t.Errorf("kept is %+v", w)
	}
	o := endpoint(7, "second")
	small.Apply(Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: 8})
	for ch := range small.Snapshot().Changes(was) {
		t.Errorf("a change of labels is a change of %s", ch.Key)
	}
}

// A node keeps little of the pods of other nodes' Deployments. This bounds what is kept for each pod, what the ten pods
// of a Deployment share, and that the first snapshot does not retain the list of all keys.
func TestEndpointsOfDeploymentsTakeLittle(t *testing.T) {
	const many = 10_000
	tables := NewTables(zap.NewNop(), "here")
	before := heap()
	for i := range many {
		o := endpointOn(t, fmt.Sprint("n", i%100), i%250,
			fmt.Sprintf(`{"app":"app-%d","team":"t","hash":"%[1]d"}`, i%1000))
		o.Key.Name = fmt.Sprintf("n%d-k8s-web%d-eth0", i%100, i)
		s := &o.Value.(*model.WorkloadEndpoint).Spec
		s.IPNetworks = []string{fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255, i&255)}
		s.IPNATs, s.AllowSpoofedSourcePrefixes, s.QoSControls = nil, nil, nil
		tables.Apply(Event{Type: EventUpdate, Key: o.Key, Object: o, Revision: 7})
	}
	tables.Apply(Event{Type: EventInSync, Revision: 7})
	size := (heap() - before) / many
	runtime.KeepAlive(tables)
	t.Logf("bytes for an endpoint: %d", size)
	if size > 420 {
		t.Errorf("an endpoint takes %d bytes, want at most 420", size)
	}
}

// heap returns the size of the heap in use, in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
