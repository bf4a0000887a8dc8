package kubernetes

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
)

// fullObject returns an object of testdata with every field that a current cluster fills in.
func fullObject[T any](tb testing.TB, name string) *T {
	tb.Helper()
	text, err := os.ReadFile("testdata/" + name + ".json")
	o := new(T)
	if err == nil {
		err = json.Unmarshal(text, o)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// TestTrim: the trimmed message decodes to the same objects.
func TestTrim(t *testing.T) {
	pod, node := fullObject[corev1.Pod](t, "pod"), fullObject[corev1.Node](t, "node")
	end := metav1.Now().Rfc3339Copy()
	ended := pod.DeepCopy()
	ended.DeletionTimestamp, ended.Status.Phase, ended.Spec.HostNetwork = &end, corev1.PodSucceeded, true
	jobs := pod.DeepCopy()
	jobs.Spec.InitContainers = []corev1.Container{
		{Name: "side", Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 53, Protocol: "UDP"}}}}
	for name, p := range map[string]*corev1.Pod{"pod": pod, "ended": ended, "init": jobs, "empty": {},
		"huge": huge(pod)} {
		raw := marshal(t, p)
		var left corev1.Pod
		if err := left.Unmarshal(trim(nil, raw, keptPod)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(left.ManagedFields) > 0 || len(left.Spec.Volumes) > 0 {
			t.Errorf("%s: not all was left out that is of no use", name)
		}
		want, wantNotices := form.Endpoint(p, form.Config{})
		have, haveNotices := form.Endpoint(&left, form.Config{})
		checkSame(t, name, have, want)
		if !reflect.DeepEqual(haveNotices, wantNotices) {
			t.Errorf("%s: notices %v, want %v", name, haveNotices, wantNotices)
		}
	}
	for name, n := range map[string]*corev1.Node{
		"node": node, "empty": {ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "1"}}} {
		var left corev1.Node
		if err := left.Unmarshal(trim(nil, marshal(t, n), keptNode)); err != nil {
			t.Fatal(err)
		}
		if len(left.Status.Images) > 0 {
			t.Errorf("%s: not all was left out that is of no use", name)
		}
		want, _ := form.Node(n, form.Config{UsePodCIDR: true})
		have, _ := form.Node(&left, form.Config{UsePodCIDR: true})
		checkSame(t, name, have, want)
	}
}

// huge has a label and an annotation whose lengths take more bytes than most.
func huge(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.Annotations["cni.projectcalico.org/podIPs"] = strings.Repeat("10.64.0.1/32,", 5000) + "10.64.0.1/32"
	return p
}

func checkSame(t *testing.T, name string, have, want *model.Object) {
	t.Helper()
	if (have == nil) != (want == nil) || have != nil && !reflect.DeepEqual(have.Value, want.Value) {
		t.Errorf("%s:\n%v\nwant\n%v", name, have, want)
	}
}

type marshaller interface{ Marshal() ([]byte, error) }

func marshal(tb testing.TB, m marshaller) []byte {
	tb.Helper()
	raw, err := m.Marshal()
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// TestTrimDamaged: a damaged message stays damaged or gets shorter; it never causes a panic.
func TestTrimDamaged(t *testing.T) {
	raw := marshal(t, fullObject[corev1.Pod](t, "pod"))
	r := rand.New(rand.NewPCG(1, 2))
	for n := range len(raw) {
		cut := trim(nil, raw[:n], keptPod)
		if len(cut) > n {
			t.Fatalf("%d bytes became %d", n, len(cut))
		}
		spoilt := append([]byte(nil), raw...)
		spoilt[n] ^= byte(1 << r.IntN(8))
		_ = new(corev1.Pod).Unmarshal(trim(nil, spoilt, keptPod))
	}
	if err := new(corev1.Pod).Unmarshal(trim(nil, raw[:len(raw)-1], keptPod)); err == nil {
		t.Error("a pod without its end is one")
	}
}

// BenchmarkPod measures the cost of one pod of another node, from the API's bytes to the endpoint.
func BenchmarkPod(b *testing.B) {
	raw := marshal(b, fullObject[corev1.Pod](b, "pod"))
	for _, c := range []struct {
		name string
		keep parts
	}{{"all", nil}, {"trimmed", keptPod}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(raw)))
			var buffer []byte
			for b.Loop() {
				left := raw
				if c.keep != nil {
					buffer = trim(buffer[:0], raw, c.keep)
					left = buffer
				}
				var p corev1.Pod
				if err := p.Unmarshal(left); err != nil {
					b.Fatal(err)
				}
				if o, _ := form.Endpoint(&p, form.Config{}); o == nil {
					b.Fatal("no endpoint")
				}
			}
		})
	}
}
