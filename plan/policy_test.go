package plan

import (
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// A plan says which policies select an endpoint without effect, and which port is a node's new one.
func TestPolicyChanges(t *testing.T) {
	h := model.NewObject(model.ResourceKey(model.KindHostEndpoint, "h"), &v3.HostEndpoint{
		ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v3.HostEndpointSpec{Node: "n", InterfaceName: "*"}})
	p := model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, "p"), &v3.GlobalNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v3.GlobalNetworkPolicySpec{DoNotTrack: true,
			ApplyOnForward: true, Types: []v3.PolicyType{v3.PolicyTypeIngress}}})
	b := &model.BGPConfiguration{}
	b.Spec.ListenPort = 1790
	d := Diff{Node: "n"}
	d.ComparePolicy(model.NewSet(h), model.NewSet(h, p,
		model.NewObject(model.ResourceKey(model.KindBGPConfiguration, "default"), b)))
	var text strings.Builder
	if err := d.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`+ GlobalNetworkPolicy/p in tier default (ignored: doNotTrack has no effect at a host endpoint with ` +
			`interfaceName "*")` + "\n",
		"policy: BGP ports of nodes and peers\n      + 1790\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
