package form

import (
	"reflect"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// fullMetadata is metadata of which only a part is kept.
func fullMetadata(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace, UID: "u", ResourceVersion: "5", Labels: map[string]string{"l": "v"},
		Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 1000),
			"projectcalico.org/ipv4pools": "a", "cni.projectcalico.org/ipv4pools": "b"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}, Finalizers: []string{"f"},
	}
}

func checkTrimmed(t *testing.T, o *model.Object, want model.Key, annotations map[string]string) {
	t.Helper()
	if o.Err != nil || o.Key != want || o.Revision != 5 {
		t.Errorf("%+v", o)
	}
	m := o.Metadata()
	if m.GetManagedFields() != nil || m.GetFinalizers() != nil || !reflect.DeepEqual(m.GetAnnotations(), annotations) ||
		m.GetUID() != "u" || m.GetResourceVersion() != "5" {
		t.Errorf("%s keeps %+v", want, m)
	}
}

func TestOnlyUsedFieldsAreKept(t *testing.T) {
	n := Namespace(&corev1.Namespace{ObjectMeta: fullMetadata("", "shop")})
	checkTrimmed(t, n, model.ResourceKey(model.KindNamespace, "shop"),
		map[string]string{"cni.projectcalico.org/ipv4pools": "b"})
	a := ServiceAccount(&corev1.ServiceAccount{ObjectMeta: fullMetadata("shop", "robot"),
		Secrets: []corev1.ObjectReference{
			{Name: "s"}}})
	checkTrimmed(t, a, model.Key{Kind: model.KindServiceAccount, Namespace: "shop", Name: "robot"}, nil)
	if n.Metadata().GetLabels()["l"] != "v" || a.Metadata().GetLabels()["l"] != "v" {
		t.Error("labels are needed")
	}
	s := Service(&corev1.Service{ObjectMeta: fullMetadata("shop", "web"), Spec: corev1.ServiceSpec{
		Type: "LoadBalancer", ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00::1"},
		ExternalIPs: []string{"192.0.2.1"}, LoadBalancerIP: "192.0.2.2",
		IPFamilies: []corev1.IPFamily{"IPv4", "IPv6"}, ExternalTrafficPolicy: "Local", Selector: map[string]string{
			"a": "b"},
		Ports: []corev1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}},
	}, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{
		Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.3"}, {Hostname: "h"}}}}})
	checkTrimmed(t, s, model.Key{Kind: model.KindService, Namespace: "shop", Name: "web"},
		map[string]string{"projectcalico.org/ipv4pools": "a"})
	want := model.ServiceSpec{Type: "LoadBalancer", ClusterIP: "10.96.0.1",
		ClusterIPs: []string{"10.96.0.1", "fd00::1"}, ExternalIPs: []string{"192.0.2.1"},
		LoadBalancerIP: "192.0.2.2", IPFamilies: []string{"IPv4", "IPv6"}, ExternalTrafficPolicy: "Local",
		Ports: []model.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}}
	if v := s.Value.(*model.Service); !reflect.DeepEqual(v.Spec, want) || len(v.Status.LoadBalancer.Ingress) != 2 ||
		v.Labels != nil {
		t.Errorf("%+v", v)
	}
	yes, no, node, port, name, protocol := true, false, "node-1", int32(80), "http", corev1.ProtocolTCP
	meta := fullMetadata("shop", "web-abc")
	meta.Labels[model.LabelServiceName] = "web"
	e := EndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: "IPv4",
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.7"}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Terminating: &no}}, {}},
		Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	})
	checkTrimmed(t, e, model.Key{Kind: model.KindEndpointSlice, Namespace: "shop", Name: "web-abc"}, nil)
	if v := e.Value.(*model.EndpointSlice); !reflect.DeepEqual(v.Labels,
		map[string]string{model.LabelServiceName: "web"}) || len(v.Endpoints) != 2 ||
		*v.Endpoints[0].NodeName != "node-1" || !*v.Endpoints[0].Conditions.Ready ||
		*v.Endpoints[0].Conditions.Terminating || *v.Ports[0].Protocol != "TCP" {
		t.Errorf("%+v", v)
	}
	k := KubernetesPolicy(&networkingv1.NetworkPolicy{ObjectMeta: fullMetadata("shop", "p"),
		Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Egress"}}})
	checkTrimmed(t, k, model.Key{Kind: model.KindKubernetesNetworkPolicy, Namespace: "shop", Name: "p"}, nil)
	if p, err := conversion.Policy(k); err != nil || p.Value.(*v3.NetworkPolicy).Spec.Types[0] != v3.PolicyTypeEgress {
		t.Errorf("%v, %v", p, err)
	}
}

func TestProfiles(t *testing.T) {
	const uid = "0f3ac7de-9b21-4c55-8f10-2b6d1a9e7c04"
	meta := fullMetadata("", "shop")
	meta.UID = uid
	p := Profile(Namespace(&corev1.Namespace{ObjectMeta: meta}))
	v := p.Value.(*v3.Profile)
	if p.Key != model.ResourceKey(model.KindProfile, "kns.shop") || p.Revision != 5 || v.UID != UID(V1, uid) ||
		v.ResourceVersion != "5/" || len(v.Spec.Egress) != 1 ||
		!reflect.DeepEqual(v.Spec.LabelsToApply,
			map[string]string{"pcns.l": "v", "pcns.projectcalico.org/name": "shop"}) ||
		v.Annotations["cni.projectcalico.org/ipv4pools"] != "b" {
		t.Errorf("%+v %+v", p, v)
	}
	p = Profile(ServiceAccount(&corev1.ServiceAccount{ObjectMeta: fullMetadata("shop", "robot")}))
	v = p.Value.(*v3.Profile)
	if p.Key.Name != "ksa.shop.robot" || v.ResourceVersion != "/5" || len(v.Spec.Egress) != 0 ||
		!reflect.DeepEqual(v.Spec.LabelsToApply,
			map[string]string{"pcsa.l": "v", "pcsa.projectcalico.org/name": "robot"}) {
		t.Errorf("%+v %+v", p, v)
	}
	if p := Profile(Service(&corev1.Service{ObjectMeta: fullMetadata("shop", "web")})); p != nil {
		t.Errorf("%+v", p)
	}
}

func TestClusterPolicy(t *testing.T) {
	o, err := ClusterPolicy(
		[]byte(
			`{"metadata":{"name":"p","resourceVersion":"5","uid":"u","managedFields":[{"manager":"m"}],"annotations":{"a":"b"}},
		"spec":{"tier":"Admin","priority":3,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	checkTrimmed(t, o, model.ResourceKey(model.KindClusterNetworkPolicy, "p"), nil)
	if p, err := conversion.Policy(o); err != nil || p.Value.(*v3.GlobalNetworkPolicy).Spec.Tier != "kube-admin" {
		t.Errorf("%+v, %v", p, err)
	}
	if o, err := ClusterPolicy(
		[]byte(`{"metadata":{"name":"p","resourceVersion":"5"},"spec":{"priority":"high"}}`)); err != nil || o.Err == nil || o.Revision != 5 || o.Value != nil {
		t.Errorf("%+v, %v", o, err)
	}
	for _, raw := range []string{``, `null`, `7`, `{"metadata":{"resourceVersion":"5"}}`, `{"metadata":{"name":"p"}}`} {
		if o, err := ClusterPolicy([]byte(raw)); err == nil {
			t.Errorf("%s: %+v", raw, o)
		}
	}
}

// oddDocument is a document with the result of its validation by Calico's programs or the API server.
type oddDocument struct {
	Doc   any
	Why   string
	Stage string
}

// An API with older or less strict custom resource definitions may have objects that Calico accepts, and objects that
// it refuses. No object makes its reader fail: it is used, or shown with the reason.
func TestJudgedDocuments(t *testing.T) {
	used, shown := 0, 0
	for _, file := range []string{"rejected.jsonl", "accepted-although-odd.jsonl"} {
		for _, d := range jsonlines.Read[oddDocument](t, "testdata/"+file) {
			doc, ok := d.Doc.(map[string]any)
			if !ok {
				continue // no JSON object: an API server cannot have that
			}
			meta, _ := doc["metadata"].(map[string]any)
			kind, _ := doc["kind"].(string)
			r, ok := CustomResource(V1, model.Kind(kind))
			if !ok || meta == nil || meta["name"] == nil || (meta["namespace"] != nil) != r.Namespaced {
				continue
			}
			meta["resourceVersion"] = "1"
			o, err := Decode(V1, model.Kind(kind), mustJSON(t, doc))
			switch {
			case err != nil:
				t.Errorf("%s: %v", d.Why, err)
			case o.Err == nil:
				used++
				if _, err := Encode(V1, o); err != nil {
					t.Errorf("%s: %v", d.Why, err)
				}
			default:
				shown++
				if strings.HasPrefix(file, "accepted") && d.Why != "unknown label selector operator" &&
					d.Why != "failsafe with a protocol that has no ports" {
					t.Errorf("%s is accepted by Calico, but not used: %v", d.Why, o.Err)
				}
			}
		}
	}
	if used < 30 || shown < 10 {
		t.Errorf("%d used, %d shown with an error", used, shown)
	}
}

func TestMigration(t *testing.T) {
	o, err := Migration([]byte(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstanceMigration",
		"metadata":{"name":"m","namespace":"shop","resourceVersion":"5","uid":"u","labels":{"a":"b"},
			"managedFields":[{"manager":"m"}]},"spec":{"vmiName":"db"},
		"status":{"phase":"Running","migrationState":{"sourcePod":"virt-launcher-db-1","targetNode":"n2"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	m, _ := o.Value.(*model.VirtualMachineInstanceMigration)
	if o.Key != (model.Key{Kind: model.KindMigration, Namespace: "shop", Name: "m"}) || o.Revision != 5 || m == nil ||
		m.UID != "u" || m.Spec.VMIName != "db" || m.Status.MigrationState.SourcePod != "virt-launcher-db-1" ||
		m.Succeeded() || m.Failed() || m.Labels != nil || m.ManagedFields != nil || m.Kind != "" {
		t.Errorf("%+v %+v", o, m)
	}
	if o, err := Migration([]byte(`{"metadata":{"name":"m","namespace":"shop","resourceVersion":"5"},
		"spec":{"vmiName":7}}`)); err != nil || o.Err == nil || o.Value != nil {
		t.Errorf("%+v, %v", o, err)
	}
}
