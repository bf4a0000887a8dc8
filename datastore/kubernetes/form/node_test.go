package form

import (
	"encoding/json"
	"maps"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// kubeNodes returns the Nodes of the fixtures.
func kubeNodes(t testing.TB) []*corev1.Node {
	var list []*corev1.Node
	for _, r := range jsonlines.Read[rawObject](t, "testdata/objects.jsonl") {
		if r.head(t) == (head{"v1", "Node"}) {
			list = append(list, parse[corev1.Node](t, r.Object))
		}
	}
	if len(list) < 3 {
		t.Fatalf("only %d nodes", len(list))
	}
	return list
}

// patched returns the annotations of a Node after a patch, and the rest of the patch's metadata.
func patched(
	t testing.TB, before map[string]string, patch []byte, err error,
) (after map[string]string, meta map[string]any) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	var p map[string]map[string]any
	if err := json.Unmarshal(patch, &p); err != nil || len(p) != 1 {
		t.Fatalf("%v: %s", err, patch)
	}
	after = maps.Clone(before)
	if after == nil {
		after = map[string]string{}
	}
	for name, v := range p["metadata"]["annotations"].(map[string]any) {
		if v == nil {
			delete(after, name)
		} else {
			after[name] = v.(string)
		}
	}
	delete(p["metadata"], "annotations")
	return after, p["metadata"]
}

// settled sorts the JSON in annotations.
func settled(t testing.TB, annotations map[string]string) map[string]string {
	m := maps.Clone(annotations)
	for _, name := range []string{annotationLabels, annotationAnnotations, annotationInterfaces} {
		if text, ok := m[name]; ok {
			m[name] = string(mustJSON(t, tree(t, []byte(text))))
		}
	}
	return m
}

func TestNodeReadAndWrittenBack(t *testing.T) {
	for _, n := range kubeNodes(t) {
		o, _ := Node(n, config)
		patch, err := NodePatch(o)
		after, meta := patched(t, n.Annotations, patch, err)
		if want := settled(t, n.Annotations); !reflect.DeepEqual(settled(t, after), want) {
			t.Errorf("%s:\nwant %v\nhave %v", n.Name, want, after)
		}
		if meta["resourceVersion"] != n.ResourceVersion || meta["uid"] != string(n.UID) || len(meta) != 2 {
			t.Errorf("%s: %v", n.Name, meta)
		}
		// Only Calico's annotations are changed, and all of them are removed.
		empty := model.NewObject(o.Key, &model.Node{})
		patch, err = NodePatch(empty)
		after, meta = patched(t, n.Annotations, patch, err)
		for name := range after {
			if strings.Contains(name, calico) {
				t.Errorf("%s: %s stays", n.Name, name)
			}
		}
		if len(meta) != 0 || len(after) != strings.Count(strings.Join(keys(n.Annotations), " "), "kubectl.") {
			t.Errorf("%s: %v, %v", n.Name, meta, after)
		}
	}
}

func keys(m map[string]string) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}

// Kubernetes' labels win when a Node is read, and are not copied when it is written.
func TestNodeLabels(t *testing.T) {
	n := &corev1.Node{}
	n.Name, n.ResourceVersion = "n", "1"
	n.Labels = map[string]string{"zone": "east", "kubernetes.io/hostname": "n"}
	n.Annotations = map[string]string{annotationLabels: `{"rack":"r1","zone":"west"}`,
		annotationAnnotations: `{"note":"x"}`}
	o, notices := Node(n, config)
	node := o.Value.(*model.Node)
	if want := map[string]string{"zone": "east", "kubernetes.io/hostname": "n", "rack": "r1"}; !reflect.DeepEqual(
		node.Labels, want) || notices != nil {
		t.Errorf("%v, %v", node.Labels, notices)
	}
	if node.Annotations["note"] != "x" ||
		node.Annotations[model.AnnotationKubeLabels] != `{"kubernetes.io/hostname":"n","zone":"east"}` {
		t.Errorf("%v", node.Annotations)
	}
	c := o.Clone()
	c.Value.(*model.Node).Labels["rack"] = "r2"
	c.Value.(*model.Node).Labels["zone"] = "south" // shadowed: it is Kubernetes'
	patch, err := NodePatch(c)
	after, _ := patched(t, n.Annotations, patch, err)
	if after[annotationLabels] != `{"rack":"r2"}` || after[annotationAnnotations] != `{"note":"x"}` ||
		after[model.AnnotationKubeLabels] != "" {
		t.Errorf("%v", after)
	}
	c.Value.(*model.Node).Annotations[model.AnnotationKubeLabels] = "cow"
	if patch, err := NodePatch(c); err == nil || !strings.Contains(err.Error(), model.AnnotationKubeLabels) {
		t.Errorf("%s, %v", patch, err)
	}
	if _, err := NodePatch(model.NewObject(model.IPAMConfigKey, &model.IPAMConfig{})); err == nil {
		t.Error("no Node")
	}
}

func TestNodeAddresses(t *testing.T) {
	n := &corev1.Node{}
	n.Name, n.ResourceVersion = "n", "1"
	n.Annotations = map[string]string{calico + "IPv4Address": "10.0.0.1/24"}
	n.Status.Addresses = []corev1.NodeAddress{{Type: "Hostname", Address: "n"},
		{Type: "InternalIP", Address: "10.0.0.1"}, {Type: "ExternalIP", Address: "192.0.2.1"}}
	n.Spec.PodCIDRs, n.Spec.PodCIDR = []string{"10.1.2.0/24", "fd00::/64"}, "10.1.2.0/24"
	o, _ := Node(n, config)
	node := o.Value.(*model.Node)
	if want := []model.NodeAddress{{Address: "10.0.0.1/24", Type: "CalicoNodeIP"},
		{Address: "10.0.0.1", Type: "InternalIP"}, {Address: "192.0.2.1", Type: "ExternalIP"}}; !reflect.DeepEqual(
		node.Spec.Addresses, want) {
		t.Errorf("%v", node.Spec.Addresses)
	}
	if !reflect.DeepEqual(node.Status.PodCIDRs, n.Spec.PodCIDRs) || node.Spec.BGP.IPv4IPIPTunnelAddr != "" {
		t.Errorf("%+v", node)
	}
}

// With usePodCIDR the addresses of tunnels are the first of the pods' range, regardless of annotations.
func TestUsePodCIDR(t *testing.T) {
	const key = "jlkVyQYooZYzI2wFfNhSZez5eWh44yfq1wKVjLvSXgY="
	for _, c := range []struct{ podCIDR, key, ipip, wireguard string }{
		{"10.1.2.0/24", "", "10.1.2.1", ""}, {"10.1.2.0/24", key, "10.1.2.1", "10.1.2.1"}, {"fd00::/64", key, "", ""},
		{"", key, "10.9.9.9", "10.9.9.8"}, {"cow", key, "", ""},
	} {
		n := &corev1.Node{}
		n.Name, n.ResourceVersion, n.Spec.PodCIDR = "n", "1", c.podCIDR
		n.Annotations = map[string]string{calico + "IPv4IPIPTunnelAddr": "10.9.9.9",
			calico + "IPv4WireguardInterfaceAddr": "10.9.9.8", annotationPublicKey: c.key}
		o, notices := Node(n, Config{UsePodCIDR: true})
		node := o.Value.(*model.Node)
		have := []string{"", ""}
		if node.Spec.BGP != nil {
			have[0] = node.Spec.BGP.IPv4IPIPTunnelAddr
		}
		if node.Spec.Wireguard != nil {
			have[1] = node.Spec.Wireguard.InterfaceIPv4Address
		}
		if have[0] != c.ipip || have[1] != c.wireguard || (len(notices) > 0) != (c.podCIDR == "cow") {
			t.Errorf("%+v: %v, %v", c, have, notices)
		}
	}
}

// An unusable annotation counts as missing and has a notice; the others apply.
func TestWrongNodeAnnotations(t *testing.T) {
	n := &corev1.Node{}
	n.Name, n.ResourceVersion = "n", "1"
	n.Annotations = map[string]string{
		calico + "IPv4Address": "fd00::1/64", calico + "IPv6Address": "10.0.0.1", annotationASNumber: "cow",
		calico + "RouteReflectorClusterID": "1.2.3.4/32",
		calico + "IPv4IPIPTunnelAddr":      "10.0.0", calico + "IPv4VXLANTunnelAddr": strings.Repeat("1", 1<<20),
		calico + "IPv6VXLANTunnelAddr": "::1::",
		calico + "VXLANTunnelMACAddr":  "66:11", calico + "VXLANTunnelMACAddrV6": "x",
		calico + "IPv4WireguardInterfaceAddr": "::1",
		calico + "IPv6WireguardInterfaceAddr": "1.2.3.4", annotationPublicKey: "abc",
		calico + "WireguardPublicKeyV6": "abc",
		annotationInterfaces:            `{"name":7}`, annotationLabels: `["x"]`, annotationAnnotations: `{"x":1}`,
	}
	o, notices := Node(n, config)
	if len(notices) != len(n.Annotations) {
		t.Errorf("%d notices of %d: %v", len(notices), len(n.Annotations), notices)
	}
	for _, notice := range notices {
		if text := notice.String(); len(text) > 300 || !strings.Contains(text, "Node n: metadata.annotations[") {
			t.Errorf("%.400s", text)
		}
	}
	node := o.Value.(*model.Node)
	if want := (model.NodeSpec{OrchRefs: []model.OrchRef{{NodeName: "n", Orchestrator: "k8s"}}}); !reflect.DeepEqual(
		node.Spec, want) || o.Err != nil {
		t.Errorf("%+v, %v", node.Spec, o.Err)
	}
	n.Annotations = map[string]string{
		annotationInterfaces: `[{"name":"eth0","addresses":["10.0.0.1","cow","fd00::1"]}]`,
		annotationASNumber:   "65010.7"}
	o, notices = Node(n, config)
	node = o.Value.(*model.Node)
	if !reflect.DeepEqual(node.Spec.Interfaces, []model.NodeInterface{
		{Name: "eth0", Addresses: []string{"10.0.0.1", "fd00::1"}}}) || len(notices) != 1 ||
		uint32(*node.Spec.BGP.ASNumber) != 65010<<16+7 {
		t.Errorf("%+v, %v", node.Spec, notices)
	}
	n.ResourceVersion = "soon"
	if o, _ := Node(n, config); o.Err == nil {
		t.Error("a Node without a usable version")
	}
}
