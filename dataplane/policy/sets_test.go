package policy

import (
	"fmt"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// IPv6 costs a cluster without it nothing: no set and no rule, until a set has an IPv6 element.
func TestSetsOfIPv6AreThereWhenTheyAreNeeded(t *testing.T) {
	pod := func(name string, nets ...string) *model.Object {
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali" + name,
			IPNetworks: nets}}
		w.Labels = map[string]string{"pod": name, model.LabelNamespace: "default"}
		return model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name}, w)
	}
	p := &v3.GlobalNetworkPolicy{Spec: v3.GlobalNetworkPolicySpec{Tier: "default", Selector: "pod == 'web'",
		Types: []v3.PolicyType{v3.PolicyTypeIngress},
		Ingress: []v3.Rule{
			{Action: v3.Allow, Source: v3.EntityRule{Selector: "pod == 'client'"}},
			{Action: v3.Allow, Source: v3.EntityRule{NotSelector: "pod == 'client'"}},
		}}}
	pool := &model.IPPool{}
	pool.Spec.CIDR = "fd00::/64"
	pools := model.NewObject(model.ResourceKey(model.KindIPPool, "six"), pool)
	objects := model.NewSet(pod("web", "10.0.0.1/32"), pod("client", "10.0.0.2/32"),
		model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, "default.web"), p))
	c := Build(Config{Node: "here"}, objects, nil)
	for _, step := range []struct {
		name        string
		change      *model.Object
		gone        bool
		sets, rules int // of the policy in the table
	}{
		{"nothing of IPv6", nil, false, 1, 3},
		{"the set gets a member", pod("client", "10.0.0.2/32", "fd00::2/128"), false, 2, 4},
		{"the set loses it", pod("client", "10.0.0.2/32"), false, 1, 3},
		{"the set gets a network", pod("client", "10.0.0.2/32", "fd00:1::/64"), false, 2, 4},
		{"the set is that of an address again", pod("client", "10.0.0.2/32", "fd00::2/128"), false, 2, 4},
		{"the set loses that", pod("client", "10.0.0.2/32"), false, 1, 3},
		{"an IPv6 pool comes", pools, false, 2, 4},
		{"the IPv6 pool goes", pools, true, 1, 3},
	} {
		if k := step.change; k != nil {
			objects[k.Key] = k
			if step.gone {
				delete(objects, k.Key)
			}
			c.Update(objects, k.Key)
		}
		sets, table := "", c.Table()
		for _, name := range table.Sets() {
			if s, n, _ := table.Set(name); strings.Contains(s.Comment, "client") {
				sets += fmt.Sprint(name[:2], ":", n, " ")
			}
		}
		if got := strings.Count(sets, ":"); got != step.sets {
			t.Errorf("%s: sets %s, want %d", step.name, sets, step.sets)
		}
		if got := len(table.Chain("pi/GlobalNetworkPolicy/default.web").Rules); got != step.rules {
			t.Errorf("%s: %d rules, want %d", step.name, got, step.rules)
		}
		again, _ := text(Build(Config{Node: "here"}, objects, nil).Table())
		if have, _ := text(table); again != have {
			t.Errorf("%s: computed at once it is\n%s\nstep by step\n%s", step.name, again, have)
		}
	}
}

// The sets of a service follow its slices: they come, change, leave and go to another service.
func TestSetsFollowSlices(t *testing.T) {
	slice := func(name, service, address string) *model.Object {
		return model.NewObject(model.Key{Kind: model.KindEndpointSlice, Namespace: "default", Name: name},
			&model.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{model.LabelServiceName: service}},
				Endpoints:  []model.Endpoint{{Addresses: []string{address}}}})
	}
	rule := func(service string) v3.Rule {
		return v3.Rule{Action: v3.Allow, Source: v3.EntityRule{
			Services: &v3.ServiceMatch{Namespace: "default", Name: service}}}
	}
	objects := model.NewSet(pod("default", "a", "10.0.0.9", nil), globalPolicy("p",
		v3.GlobalNetworkPolicySpec{Types: twoTypes, Ingress: []v3.Rule{rule("s"), rule("u")}}))
	c := Build(Config{Node: testNode}, objects, nil)
	for _, step := range []struct {
		change *model.Object
		gone   bool
	}{
		{slice("1", "s", "10.0.0.1"), false}, {slice("2", "s", "10.0.0.2"), false},
		{slice("1", "s", "10.0.0.3"), false},
		{slice("2", "s", ""), true}, {slice("2", "s", "10.0.0.2"), false}, {slice("1", "u", "10.0.0.3"), false},
		{slice("2", "u", "10.0.0.3"), false}, {slice("1", "u", ""), true}, {slice("2", "", "10.0.0.3"), false},
	} {
		if objects[step.change.Key] = step.change; step.gone {
			delete(objects, step.change.Key)
		}
		c.Update(objects, step.change.Key)
		if have, want := tableText(t, c), tableText(t, Build(c.Config(), objects, nil)); have != want {
			t.Errorf("%+v: computed at once it is\n%s\nstep by step\n%s", step.change.Value, want, have)
		}
	}
}

func text(t *ruleset.Table) (string, error) {
	var b strings.Builder
	err := t.Text(&b, ruleset.TextOptions{})
	return b.String(), err
}
