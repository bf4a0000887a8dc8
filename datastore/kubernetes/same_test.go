package kubernetes

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// podFeed is a feed of pods, and the tables of a node that it fills.
type podFeed struct {
	*feed
	r      resource
	out    chan datastore.Event
	tables *datastore.Tables
}

func newPodFeed(t *testing.T, part datastore.Part) *podFeed {
	t.Helper()
	s := &Store{log: zap.NewNop(), reported: map[model.Key]string{}, api: form.V1, config: Config{Node: "node-1"}}
	out := make(chan datastore.Event, queued)
	p := &podFeed{out: out, tables: datastore.NewTables(zap.NewNop(), "node-1"),
		feed: &feed{store: s, kind: model.KindWorkloadEndpoint, part: part, out: out, heard: new(atomic.Int64)}}
	p.begin()
	var err error
	if p.r, err = p.resource(); err != nil {
		t.Fatal(err)
	}
	p.lost = false
	for _, part := range []datastore.Part{datastore.Whole, datastore.Own, datastore.Others} {
		p.tables.Apply(datastore.Event{Type: datastore.EventInSync, Part: part, Kinds: []model.Kind{p.kind},
			Revision: 1})
	}
	return p
}

// take passes events of a watch to the tables, and returns their number.
func (p *podFeed) take(t *testing.T, events []byte) (n int) {
	t.Helper()
	if err := p.follow(t.Context(), p.r, framesOf(p.r, bytes.NewReader(events))); err != nil {
		t.Fatal(err)
	}
	for ; len(p.out) > 0; n++ {
		p.tables.Apply(<-p.out)
	}
	return n
}

// TestVersionsWithoutADifference: of the nine events of the life of a pod, three change only conditions.
func TestVersionsWithoutADifference(t *testing.T) {
	for _, c := range []struct {
		name string
		part datastore.Part
		want int
	}{
		{"a pod of another node", datastore.Others, 6},
		{"a pod of this node", datastore.Own, 9},
		{"every version is to be delivered", datastore.Whole, 9},
	} {
		p := newPodFeed(t, c.part)
		for i := range 2 { // another pod, and then the first one again
			if n := p.take(t, podEvents(t, i)); n != c.want {
				t.Errorf("%s: %d events, want %d", c.name, n, c.want)
			}
		}
		if n := p.take(t, podEvents(t, 0)); n != c.want {
			t.Errorf("%s, again: %d events, want %d", c.name, n, c.want)
		}
		if p.at != 1019 {
			t.Errorf("%s: the watch is at %d, want 1019", c.name, p.at)
		}
	}
}

// TestAFullReadForgetsVersions: after a full read the reader may have another version than the last event had.
func TestAFullReadForgetsVersions(t *testing.T) {
	p := newPodFeed(t, datastore.Others)
	pod := fullObject[corev1.Pod](t, "pod")
	event := func(typ string, revision int) int {
		pod.ResourceVersion = fmt.Sprint(revision)
		return p.take(t, eventOf(t, typ, pod))
	}
	if n := event("ADDED", 10) + event("MODIFIED", 11); n != 1 {
		t.Fatalf("%d events, want 1", n)
	}
	if _, err := p.newReading(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-p.out // EventLost
	if n := event("MODIFIED", 12); n != 1 {
		t.Errorf("%d events after a full read, want 1", n)
	}
}

// TestLeftOutVersionsAreNotMissed changes pods at random, also in fields that nobody keeps: tables with all versions
// and tables without the equal ones have the same endpoints after each event.
func TestLeftOutVersionsAreNotMissed(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	all, some := newPodFeed(t, datastore.Whole), newPodFeed(t, datastore.Others)
	pick := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	changes := []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Labels = map[string]string{"app": pick("web", "db")} },
		func(p *corev1.Pod) {
			p.Annotations["cni.projectcalico.org/podIPs"] = pick("", "10.0.0.1/32", "10.0.0.2/32")
		},
		func(p *corev1.Pod) { p.Annotations["cni.projectcalico.org/podIP"] = pick("", "10.0.0.1/32") },
		func(p *corev1.Pod) { p.Annotations["cni.projectcalico.org/containerID"] = pick("a", "b") },
		func(p *corev1.Pod) { p.Annotations["note"] = pick("a", "b") },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodPhase(pick("Pending", "Running", "Failed")) },
		func(p *corev1.Pod) { p.Status.PodIP = pick("", "10.0.0.3") },
		func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: pick("10.0.0.3", "10.0.0.4")}} },
		func(p *corev1.Pod) { p.Status.Message = pick("a", "b") },
		func(p *corev1.Pod) { p.Spec.ServiceAccountName = pick("", "app") },
		func(p *corev1.Pod) { p.Spec.HostNetwork = random.IntN(5) == 0 },
		func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{
				{Name: pick("http", "dns"), ContainerPort: 80, Protocol: corev1.Protocol(pick("TCP", "UDP"))}}}}
		},
		func(p *corev1.Pod) { p.DeletionTimestamp = nil },
		func(p *corev1.Pod) { now := metav1.Now().Rfc3339Copy(); p.DeletionTimestamp = &now },
	}
	pods := map[int]*corev1.Pod{}
	delivered := [2]int{}
	for revision := 10; revision < 5000; revision++ {
		i, typ := random.IntN(5), "MODIFIED"
		p := pods[i]
		switch {
		case p == nil:
			typ, p = "ADDED", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pick("a", "b"),
				Name: fmt.Sprint("pod-", i), Annotations: map[string]string{}},
				Spec: corev1.PodSpec{NodeName: pick("node-2", "node-3")}}
			pods[i] = p
		case random.IntN(20) == 0:
			typ = "DELETED"
			delete(pods, i)
		default:
			changes[random.IntN(len(changes))](p)
		}
		p.ResourceVersion = fmt.Sprint(revision)
		event := eventOf(t, typ, p)
		delivered[0] += all.take(t, event)
		delivered[1] += some.take(t, event)
		want, have := endpoints(all.tables), endpoints(some.tables)
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("after %s of %s/%s: %v, want %v", typ, p.Namespace, p.Name, have, want)
		}
	}
	if delivered[1] >= delivered[0] {
		t.Errorf("%d events of %d were delivered, want fewer", delivered[1], delivered[0])
	}
}

// endpoints are the endpoints of tables.
func endpoints(tables *datastore.Tables) map[model.Key]any {
	list := map[model.Key]any{}
	for o := range tables.Snapshot().All(model.KindWorkloadEndpoint) {
		list[o.Key] = o.Value
	}
	return list
}
