package form

import (
	"fmt"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// benchPods are pods of some hundred Deployments on a thousand nodes, as a scheduler would spread them.
func benchPods(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		app := fmt.Sprintf("app-%d", i%300)
		pods[i] = kubePod(func(p *corev1.Pod) {
			p.Name, p.GenerateName, p.Namespace = fmt.Sprintf("%s-7d9c5b8f6-%05d", app, i), app+"-7d9c5b8f6-",
				fmt.Sprintf("ns-%d", i%100)
			p.Labels = map[string]string{"app": app, "pod-template-hash": "7d9c5b8f6", "app.kubernetes.io/name": app,
				"team": fmt.Sprint("team-", i%20)}
			p.Annotations = map[string]string{conversion.AnnotationIP: fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&255,
				i&255), conversion.AnnotationContainer: fmt.Sprintf("%064x", i)}
			p.Annotations[conversion.AnnotationIPs] = p.Annotations[conversion.AnnotationIP]
			p.Spec.NodeName = fmt.Sprintf("node-%d", i%1000)
			p.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
			p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
		})
	}
	return pods
}

// BenchmarkEndpoint measures the cost of one pod of 30,000 when they are read, and how much memory it takes before the
// tables reduce it.
func BenchmarkEndpoint(b *testing.B) {
	pods := benchPods(30000)
	kept := make([]*model.Object, len(pods))
	before := heap()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		kept[i%len(kept)], _ = Endpoint(pods[i%len(pods)], config)
	}
	b.StopTimer()
	b.ReportMetric(float64(heap()-before)/float64(min(b.N, len(kept))), "B/pod")
	runtime.KeepAlive(kept)
	runtime.KeepAlive(pods)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkDecode measures the cost of reading each kind of custom resource as it comes.
func BenchmarkDecode(b *testing.B) {
	first := map[string]rawObject{}
	for _, r := range jsonlines.Read[rawObject](b, "testdata/objects.jsonl") {
		if h := r.head(b); h.APIVersion == string(V1) && first[h.Kind].Object == nil {
			first[h.Kind] = r
		}
	}
	for _, kind := range []string{"IPAMBlock", "BlockAffinity", "IPAMHandle", "NetworkPolicy", "IPPool"} {
		raw := first[kind].Object
		b.Run(kind, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if o, err := Decode(V1, model.Kind(kind), raw); err != nil || o.Err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(kind+"/written", func(b *testing.B) {
			o, err := Decode(V1, model.Kind(kind), raw)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Encode(V1, o); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
