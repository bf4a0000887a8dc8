package kubernetes

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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

// TestTrimSmall: the same for the other kinds.
func TestTrimSmall(t *testing.T) {
	now := metav1.Now().Rfc3339Copy()
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u", ResourceVersion: "7", Generation: 3,
		CreationTimestamp: now, Labels: map[string]string{model.LabelServiceName: "web", "a": "b"},
		Annotations:     map[string]string{"projectcalico.org/x": "y", "other": "z"},
		OwnerReferences: []metav1.OwnerReference{{Name: "web", Kind: "Service"}},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl",
			FieldsV1: &metav1.FieldsV1{Raw: []byte("{}")}}}}
	yes, port, udp, node, zone := true, int32(53), corev1.ProtocolUDP, "n1", "z1"
	spec := corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.7",
		ClusterIPs: []string{"10.96.0.7", "fd00::7"}, ExternalIPs: []string{"192.0.2.7"}, LoadBalancerIP: "192.0.2.8",
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Selector: map[string]string{"a": "b"},
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Ports:      []corev1.ServicePort{{Name: "dns", Protocol: udp, Port: port, NodePort: 30053}}}
	status := corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
		Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.8"}}}}
	checkTrim(t, keptLabels, &corev1.Namespace{ObjectMeta: meta}, form.Namespace)
	checkTrim(t, keptLabels, &corev1.ServiceAccount{ObjectMeta: meta,
		Secrets: []corev1.ObjectReference{{Name: "s"}}}, form.ServiceAccount)
	checkTrim(t, keptSpec, &corev1.Service{ObjectMeta: meta, Spec: spec, Status: status}, form.Service)
	checkTrim(t, keptSpec, &networkingv1.NetworkPolicy{ObjectMeta: meta, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}}}}}}}, form.KubernetesPolicy)
	checkTrim(t, keptSlice, &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.64.0.1"}, NodeName: &node, Zone: &zone, Hostname: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &yes},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: "web-1"}},
			{}, {Addresses: []string{"10.64.0.2", "10.64.0.3"}}},
		Ports: []discoveryv1.EndpointPort{{Name: &zone, Port: &port, Protocol: &udp}}}, form.EndpointSlice)
}

// checkTrim compares the object of a value with that of its trimmed message, which must be the smaller one.
func checkTrim[T any, P interface {
	message[T]
	marshaller
}](t *testing.T, keep parts, full P, convert func(*T) *model.Object) {
	t.Helper()
	name := fmt.Sprintf("%T", full)
	raw := marshal(t, full)
	if left := trim(nil, raw, keep); len(left) > len(raw)-50 {
		t.Errorf("%s: %d of %d bytes are left", name, len(left), len(raw))
	}
	decode := typed[T, P](keep, convert)
	have, err := decode(raw)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if _, err := decode(marshal(t, P(new(T)))); err != nil { // the next object, which must not change the first
		t.Fatalf("%s: %v", name, err)
	}
	whole := P(new(T))
	if err := whole.Unmarshal(raw); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	checkSame(t, name, have, convert(whole))
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
