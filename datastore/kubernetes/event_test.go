package kubernetes

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// appendField appends a field of a message.
func appendField(b []byte, number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), content)
}

// eventOf is an event of a watch in the API's protobuf form.
func eventOf(tb testing.TB, typ string, o interface{ Marshal() ([]byte, error) }) []byte {
	tb.Helper()
	object, err := o.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	wrapped := append([]byte(magic), appendField(nil, 2, object)...)
	b := appendField(appendField(nil, 1, []byte(typ)), 2, appendField(nil, 1, wrapped))
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// podEvents are the events of one pod of another node: created with a node, its conditions change, it gets its
// addresses, runs and goes.
func podEvents(tb testing.TB, i int) []byte {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-7d9c5b8f6-%05d", i),
		GenerateName: "app-7d9c5b8f6-", Namespace: "ns-1", UID: "6c3d4c5e-9d53-44b8-8d47-2f7f4b1f5c3a",
		Labels: map[string]string{"app": "app", "pod-template-hash": "7d9c5b8f6", "team": "blue"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update",
			FieldsV1: &metav1.FieldsV1{Raw: []byte(strings.Repeat(`{"f:metadata":{}}`, 100))}}}},
		Spec: corev1.PodSpec{NodeName: "node-7", ServiceAccountName: "app", Containers: []corev1.Container{{Name: "app",
			Image: "registry.example/app:1", Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 1000)}},
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	var events []byte
	revision := 1000 + i*10
	add := func(typ string, change func()) {
		change()
		revision++
		p.ResourceVersion = fmt.Sprint(revision)
		events = append(events, eventOf(tb, typ, p)...)
	}
	condition := func(typ corev1.PodConditionType) func() {
		return func() {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: typ, Status: "True"})
		}
	}
	add("ADDED", func() {})
	add("MODIFIED", condition(corev1.PodScheduled))
	add("MODIFIED", condition(corev1.PodInitialized))
	add("MODIFIED", func() {
		p.Annotations = map[string]string{"cni.projectcalico.org/podIP": "10.1.2.3/32",
			"cni.projectcalico.org/podIPs":      "10.1.2.3/32",
			"cni.projectcalico.org/containerID": strings.Repeat("a", 64)}
	})
	add("MODIFIED", func() {
		p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.1.2.3"
		p.Status.PodIPs = []corev1.PodIP{{IP: "10.1.2.3"}}
	})
	add("MODIFIED", func() { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })
	add("MODIFIED", condition(corev1.ContainersReady))
	add("MODIFIED", func() {
		p.Annotations["cni.projectcalico.org/podIP"], p.Annotations["cni.projectcalico.org/podIPs"] = "", ""
	})
	add("DELETED", func() {})
	return events
}

// BenchmarkLife is the life of a pod of another node, from the bytes of its nine events to the tables.
func BenchmarkLife(b *testing.B) {
	s := &Store{log: zap.NewNop(), reported: map[model.Key]string{}, api: form.V1}
	r, err := s.resource(model.KindWorkloadEndpoint)
	if err != nil {
		b.Fatal(err)
	}
	out := make(chan datastore.Event, queued)
	f := &feed{store: s, kind: r.kind, out: out, heard: new(atomic.Int64), latest: newLatest(),
		known: newRevisions(r.kind), names: map[string]model.Key{}}
	tables := datastore.NewTables(zap.NewNop(), "node-1")
	tables.Apply(datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{r.kind}, Revision: 1})
	var streams [][]byte
	for i := range 100 {
		streams = append(streams, podEvents(b, i))
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		events := framesOf(r, strings.NewReader(string(streams[n%len(streams)])))
		if err := f.follow(b.Context(), r, events); err != nil {
			b.Fatal(err)
		}
		for len(out) > 0 {
			tables.Apply(<-out)
		}
	}
}

// Events that arrive together are one step of the tables, also those that do not concern the reader. Single events are
// not delayed.
func TestEventsThatArriveTogether(t *testing.T) {
	s := &Store{log: zap.NewNop(), reported: map[model.Key]string{}, api: form.V1}
	r, err := s.resource(model.KindWorkloadEndpoint)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan datastore.Event, queued)
	f := &feed{store: s, kind: r.kind, out: out, heard: new(atomic.Int64), known: newRevisions(r.kind),
		names: map[string]model.Key{}}
	follow := func(stream io.Reader) []datastore.Event {
		t.Helper()
		if err := f.follow(t.Context(), r, framesOf(r, stream)); err != nil {
			t.Error(err)
		}
		var list []datastore.Event
		for len(out) > 0 {
			list = append(list, <-out)
		}
		return list
	}
	two := append(podEvents(t, 1), podEvents(t, 2)...)
	hostNetwork := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: true, NodeName: "n"}} // has no endpoint
	for name, c := range map[string]struct {
		stream io.Reader
		more   bool // of all events but the last one
	}{
		"together":                   {bytes.NewReader(two), true},
		"one more without an effect": {bytes.NewReader(append(two, eventOf(t, "ADDED", hostNetwork)...)), true},
		"byte by byte":               {iotest.OneByteReader(bytes.NewReader(two)), false},
	} {
		list := follow(c.stream)
		if len(list) != 18 {
			t.Errorf("%s: %d events", name, len(list))
		}
		for i, e := range list {
			if more := c.more && i+1 < len(list); e.More != more {
				t.Errorf("%s: event %d has More %t", name, i, e.More)
			}
		}
	}
	half := append(podEvents(t, 3), two[:100]...) // the connection ends within the next one
	if err := f.follow(t.Context(), r, framesOf(r, bytes.NewReader(half))); err == nil || len(out) != 9 {
		t.Errorf("cut off: %v after %d events, want 9", err, len(out))
	}
}
