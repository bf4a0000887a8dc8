package conversion

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

func decode(t *testing.T, text string) []*model.Object {
	t.Helper()
	objects, err := document.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestFromDocumentsGivesWhatCalicoWouldStore(t *testing.T) {
	text, err := os.ReadFile("testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects := decode(t, string(text))
	var before []*model.Object
	for _, o := range objects {
		before = append(before, o.Clone())
	}
	out, notices := FromDocuments(objects)
	if !reflect.DeepEqual(objects, before) {
		t.Error("what was given has changed")
	}
	var keys []string
	for _, o := range out {
		keys = append(keys, o.Key.String())
	}
	wantKeys := []string{
		"Profile kns.shop", "Profile ksa.shop.web", "WorkloadEndpoint shop/node--1-k8s-web--7d9c5b6f8--x2x4z-eth0",
		"NetworkPolicy shop/knp.default.web", "GlobalNetworkPolicy kube-admin.isolate", "Service shop/web",
		"WorkloadEndpoint default/node--2-k8s-debug-eth0", "NetworkPolicy default/knp.default.out",
		"NetworkPolicy shop/web",
		"StagedKubernetesNetworkPolicy shop/try", "Profile kns.default", "Profile ksa.default.default",
	}
	if !slices.Equal(keys, wantKeys) {
		t.Errorf("objects:\n%s\nwant:\n%s", strings.Join(keys, "\n"), strings.Join(wantKeys, "\n"))
	}
	var texts []string
	for _, n := range notices {
		texts = append(texts, n.String())
	}
	wantTexts := []string{
		`Pod shop/pending: spec.nodeName = "": is not set: the pod runs nowhere yet; the pod has no endpoint`,
		`KubernetesNetworkPolicy default/out: spec.egress[0].to[0].ipBlock.except[0] = "192.168.0.0/16": must be a part of 10.0.0.0/8; the rule is left out, so it allows nothing`,
		`Namespace default: metadata.labels = "": the namespace has pods, but is not among the documents; it counts as one without labels`,
	}
	if !slices.Equal(texts, wantTexts) {
		t.Errorf("notices:\n%s\nwant:\n%s", strings.Join(texts, "\n"), strings.Join(wantTexts, "\n"))
	}

	set := model.NewSet(out...)
	w := model.Get[model.WorkloadEndpoint](set, model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop",
		Name: "node--1-k8s-web--7d9c5b6f8--x2x4z-eth0"})
	if w == nil || !slices.Equal(w.Spec.IPNetworks, []string{"10.65.0.7/32", "fd00:65::7/128"}) ||
		len(w.Spec.Ports) != 1 || w.Spec.Ports[0].Name != "http" ||
		w.Spec.ContainerID != "3c0ffee1d2" || w.GenerateName != "web-7d9c5b6f8-" || w.Labels["app"] != "web" {
		t.Errorf("endpoint %+v", w)
	}
	// The API server sets the types of a policy without policyTypes; the conversion does the same.
	p := model.Get[v3.NetworkPolicy](set, model.Key{Kind: model.KindNetworkPolicy, Namespace: "default",
		Name: "knp.default.out"})
	if p == nil || !slices.Equal(p.Spec.Types, []v3.PolicyType{v3.PolicyTypeIngress, v3.PolicyTypeEgress}) ||
		len(p.Spec.Egress) != 1 || p.Labels[model.LabelTier] != "default" {
		t.Errorf("policy %+v", p)
	}
	if p := model.Get[v3.Profile](set, model.ResourceKey(model.KindProfile,
		"kns.default")); p.Spec.LabelsToApply["pcns.kubernetes.io/metadata.name"] != "default" {
		t.Errorf("profile %+v", p)
	}
	for _, o := range out {
		if errs := validation.Validate(o.Key, o.Value); len(errs) > 0 {
			t.Errorf("%s is not valid: %v", o.Key, errs)
		}
	}
}

func TestFromDocumentsNeverCompletesWhatIsCalicos(t *testing.T) {
	out, notices := FromDocuments(decode(t, `{kind: WorkloadEndpoint, apiVersion: projectcalico.org/v3,
  metadata: {name: n-k8s-p-eth0, namespace: a}, spec: {orchestrator: k8s, node: n, pod: p, endpoint: eth0, profiles: [kns.a]}}`))
	if len(out) != 1 || len(notices) != 0 {
		t.Errorf("%v %v", out, notices)
	}
}
