package document_test

import (
	"reflect"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
)

// The API version distinguishes Kubernetes' NetworkPolicy from Calico's.
func TestTwoKindsOfNetworkPolicyDocuments(t *testing.T) {
	const meta = "\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\n"
	for _, c := range []struct {
		version string
		want    any
	}{
		{"apiVersion: networking.k8s.io/v1", &networkingv1.NetworkPolicy{}},
		{"apiVersion: projectcalico.org/v3", &v3.NetworkPolicy{}},
		{"", &v3.NetworkPolicy{}},
	} {
		objects, err := document.Parse([]byte(c.version + meta))
		if err != nil {
			t.Fatal(err)
		}
		if reflect.TypeOf(objects[0].Value) != reflect.TypeOf(c.want) {
			t.Errorf("%q gave a %T", c.version, objects[0].Value)
		}
	}
	if _, err := document.Parse([]byte("apiVersion: extensions/v1beta1" + meta)); err == nil {
		t.Error("another API version was taken")
	}
	if _, err := document.Parse([]byte("kind: KubernetesNetworkPolicy\nmetadata: {name: web}\n")); err == nil {
		t.Error("no document calls itself a KubernetesNetworkPolicy")
	}
	list, err := document.Parse([]byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\n" +
		"items: [{metadata: {name: a, namespace: b}, spec: {podSelector: {}, egress: [{}]}}]\n"))
	if err != nil || len(list) != 1 ||
		list[0].Key != (model.Key{Kind: model.KindKubernetesNetworkPolicy, Namespace: "b", Name: "a"}) {
		t.Fatalf("%v, %v", list, err)
	}
	if err := codec.PrepareCreate(list[0], time.Now()); err != nil {
		t.Fatal(err)
	}
	if v := list[0].Value.(*networkingv1.NetworkPolicy); v.Kind != "NetworkPolicy" ||
		v.APIVersion != "networking.k8s.io/v1" {
		t.Errorf("it is now a %s of %s", v.Kind, v.APIVersion)
	}
}

func TestPodsAndTheirSurroundingsAreReadForWhatManxNeeds(t *testing.T) {
	objects, err := document.Parse([]byte(`{apiVersion: v1, kind: List, items: [
		{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {team: blue}}, spec: {finalizers: [kubernetes]}},
		{apiVersion: v1, kind: ServiceAccount, metadata: {name: robot, namespace: shop, labels: {trusted: "yes"}}, secrets: []},
		{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, annotations: {cni.projectcalico.org/podIP: 10.0.0.1/32}},
		 spec: {nodeName: n1, serviceAccountName: robot, containers: [{name: c, image: nginx, ports: [{name: http, containerPort: 80, protocol: TCP, hostPort: 8080, hostIP: 192.0.2.1}]}],
		        initContainers: [{name: i, ports: [{containerPort: 1}]}]},
		 status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r := model.NewSet(objects...)
	ns, sa := model.Get[model.Namespace](r, model.ResourceKey(model.KindNamespace, "shop")),
		model.Get[model.ServiceAccount](r, model.Key{Kind: model.KindServiceAccount, Namespace: "shop", Name: "robot"})
	pod := model.Get[model.Pod](r, model.Key{Kind: model.KindPod, Namespace: "shop", Name: "web-1"})
	if ns == nil || sa == nil || pod == nil || ns.Labels["team"] != "blue" || sa.Labels["trusted"] != "yes" {
		t.Fatalf("%+v, %+v, %+v", ns, sa, pod)
	}
	if p := pod.Spec.Containers[0].Ports[0]; p != (model.ContainerPort{Name: "http", HostPort: 8080, ContainerPort: 80,
		Protocol: "TCP", HostIP: "192.0.2.1"}) {
		t.Errorf("%+v", p)
	}
	if pod.Spec.NodeName != "n1" || pod.Spec.InitContainers[0].Ports[0].ContainerPort != 1 ||
		pod.Status.PodIPs[1].IP != "fd00::1" || pod.Status.Phase != "Running" {
		t.Errorf("%+v", pod)
	}
}
