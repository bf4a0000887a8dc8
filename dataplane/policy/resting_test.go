package policy

import (
	"reflect"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// The rules of policies without a local endpoint are not kept. They come back with the first endpoint, and for a query.
func TestRulesOfPoliciesThatSelectNothingHereAreNotKept(t *testing.T) {
	w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali1",
		IPNetworks: []string{"10.0.0.1/32"}}}
	w.Labels = map[string]string{"pod": "web", model.LabelNamespace: "default"}
	pod := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "web"}, w)
	version := func(action v3.Action) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, "default.web"),
			&v3.GlobalNetworkPolicy{Spec: v3.GlobalNetworkPolicySpec{
				Tier: "default", Selector: "pod == 'web'", Types: []v3.PolicyType{v3.PolicyTypeIngress},
				Ingress: []v3.Rule{{Action: action}}}})
	}
	id := ID{Kind: model.KindGlobalNetworkPolicy, Name: "default.web"}
	objects := model.NewSet(version(v3.Deny))
	c := Build(Config{Node: "here"}, objects, nil)
	for _, step := range []struct {
		name   string
		change *model.Object
		there  bool
		kept   int
		action Action
	}{
		{"nothing is selected", pod, false, 0, Deny},
		{"the pod comes", pod, true, 1, Deny},
		{"the rules change", version(v3.Allow), true, 1, Allow},
		{"the pod goes", pod, false, 0, Allow},
		{"the rules change", version(v3.Deny), true, 0, Deny},
		{"a version comes that cannot be used", version("Dney"), true, 0, Deny},
		{"the pod is back", pod, true, 1, Deny},
		{"the policy is valid again", version(v3.Allow), true, 1, Allow},
	} {
		if objects[step.change.Key] = step.change; !step.there {
			delete(objects, step.change.Key)
		}
		c.Update(objects, step.change.Key)
		if n := len(c.policies.of[id].Ingress.Rules); n != step.kept {
			t.Errorf("%s: %d rules are kept, want %d", step.name, n, step.kept)
		}
		p, n := c.Policy(id)
		if len(p.Ingress.Rules) != 1 || p.Ingress.Rules[0].Action != step.action || n != step.kept {
			t.Errorf("%s: %+v of %d endpoints, want one rule that does %v", step.name, p.Ingress, n, step.action)
		}
		if len(c.bad) > 0 {
			continue // a fresh calculator lacks the last valid version
		}
		fresh := Build(Config{Node: "here"}, objects, nil)
		if want, _ := fresh.Policy(id); !reflect.DeepEqual(p, want) {
			t.Errorf("%s: %+v, from scratch %+v", step.name, p, want)
		}
		if got, want := c.Table().Chains(), fresh.Table().Chains(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: chains %v, from scratch %v", step.name, got, want)
		}
	}
}
