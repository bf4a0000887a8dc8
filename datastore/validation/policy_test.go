package validation_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
	"github.com/manxnet/manx/datastore/validation/validationtest"
)

func TestPolicyRules(t *testing.T) {
	for _, o := range validationtest.Policies() {
		t.Run(o.Rule, func(t *testing.T) {
			key, parsed := parse(t, o)
			raw, _ := json.Marshal(parsed.Value)
			wantRefusal(t, parsed, o.Want)
			if read := codec.Decode(key, raw, 1); (read.Err != nil) != o.Unusable {
				t.Errorf("what is stored is quarantined because of %v", read.Err)
			}
		})
	}
}

func TestNamesOfPolicies(t *testing.T) {
	for _, c := range []struct {
		kind model.Kind
		name string
		ok   bool
	}{
		{model.KindNetworkPolicy, "web", true}, {model.KindNetworkPolicy, "platform.web", true},
		{model.KindNetworkPolicy, "a.b.c", false},
		{model.KindNetworkPolicy, "knp.default.a.b.c", true}, {model.KindStagedNetworkPolicy, "ossg.default.web", true},
		{model.KindNetworkPolicy, "knp.other.web", false},
		{model.KindGlobalNetworkPolicy, "platform.web", true},
		{model.KindGlobalNetworkPolicy, "knp.default.web", false},
		{model.KindGlobalNetworkPolicy, strings.Repeat("a", 64), false},
		{model.KindStagedKubernetesNetworkPolicy, "a.b.c", true},
	} {
		_, o := parse(t, validationtest.Object{Kind: c.kind, Name: c.name})
		if err := codec.PrepareCreate(o, created); (err == nil) != c.ok {
			t.Errorf("%s %s: %v", c.kind, c.name, err)
		}
	}
	set := model.NewObject(model.ResourceKey(model.KindGlobalNetworkSet, "s"), &v3.GlobalNetworkSet{})
	set.Metadata().SetLabels(map[string]string{model.LabelNamespace: "x"})
	if err := codec.PrepareCreate(set, created); err == nil ||
		!strings.Contains(err.Error(), "projectcalico.org/namespace=x") {
		t.Errorf("a set with the label of a namespace: %v", err)
	}
}

func TestDirectionsThatAPolicyDoesNotName(t *testing.T) {
	const in, out = `ingress: [{action: Allow}]`, `egress: [{action: Allow}]`
	for _, c := range []struct {
		kind         model.Kind
		spec         string
		read, stored string
	}{
		{model.KindNetworkPolicy, ``, "[Ingress]", "[Ingress]"},
		{model.KindNetworkPolicy, in, "[Ingress]", "[Ingress]"},
		{model.KindGlobalNetworkPolicy, out, "[Egress]", "[Egress]"},
		{model.KindGlobalNetworkPolicy, in + ", " + out, "[Ingress Egress]", "[Ingress Egress]"},
		{model.KindStagedGlobalNetworkPolicy, out + ", types: [Ingress]", "[Ingress]", "[Ingress]"},
		{model.KindStagedNetworkPolicy, `stagedAction: Delete`, "[]", "[]"},
		{model.KindStagedKubernetesNetworkPolicy, ``, "[Ingress]", "[Ingress]"},
		{model.KindStagedKubernetesNetworkPolicy, `egress: [{}]`, "[Ingress Egress]", "[Ingress Egress]"},
		{model.KindStagedKubernetesNetworkPolicy, `stagedAction: Delete`, "[]", "[]"},
		{model.KindKubernetesNetworkPolicy, `podSelector: {}`, "[]", "[Ingress]"},
		{model.KindKubernetesNetworkPolicy, `podSelector: {}, egress: [{}]`, "[]", "[Ingress Egress]"},
	} {
		key, o := parse(t, validationtest.Object{Kind: c.kind, Name: "p", Spec: c.spec})
		raw, _ := json.Marshal(o.Value)
		if got := directions(codec.Decode(key, raw, 1).Value); got != c.read {
			t.Errorf("%s {%s} is read with %s", c.kind, c.spec, got)
		}
		if err := codec.PrepareCreate(o, created); err != nil {
			t.Error(err)
		}
		if got := directions(o.Value); got != c.stored {
			t.Errorf("%s {%s} is stored with %s", c.kind, c.spec, got)
		}
	}
}

func directions(value any) string {
	spec := reflect.ValueOf(value).Elem().FieldByName("Spec")
	types := spec.FieldByName("Types")
	if !types.IsValid() {
		types = spec.FieldByName("PolicyTypes")
	}
	return fmt.Sprint(types.Interface())
}

func TestPolicyNeedsItsTier(t *testing.T) {
	tiers := model.NewSet(model.NewObject(model.ResourceKey(model.KindTier, "platform"), &model.Tier{}))
	for tier, ok := range map[string]bool{"": true, "default": true, "kube-admin": true, "platform": true,
		"absent": false} {
		p := &v3.GlobalNetworkPolicy{Spec: v3.GlobalNetworkPolicySpec{Tier: tier}}
		if errs := validation.CheckPolicyTier(p, tiers); (len(errs) == 0) != ok {
			t.Errorf("tier %q: %v", tier, errs)
		}
	}
	if errs := validation.CheckPolicyTier(&v3.NetworkSet{}, tiers); errs != nil {
		t.Errorf("a set has no tier: %v", errs)
	}
}
