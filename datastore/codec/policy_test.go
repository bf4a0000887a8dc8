package codec

import (
	"reflect"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

func TestPolicyNameFromEitherSpelling(t *testing.T) {
	for _, c := range []struct{ rule, stored, annotated, tier, want string }{
		{"today's spelling", "web", "web", "default", "web"},
		{"today's spelling of another tier", "platform.web", "platform.web", "platform", "platform.web"},
		{"today's spelling of a name with the old prefix", "default.web", "default.web", "default", "default.web"},
		{"old spelling", "default.web", "", "default", "web"},
		{"old spelling, tier not said", "default.web", "", "", "web"},
		{"old spelling of another tier", "platform.web", "", "platform", "platform.web"},
		{"a name that looks old in another tier", "default.web", "", "platform", "default.web"},
		{"old key that was annotated", "default.web", "web", "default", "web"},
		{"annotation that fits neither", "web", "other", "default", "web"},
		{"made of a Kubernetes policy", "knp.default.web", "", "default", "knp.default.web"},
		{"made of a Kubernetes policy, annotated", "knp.default.web", "knp.default.web", "default", "knp.default.web"},
		{"nothing behind the prefix", "default.", "", "default", "default."},
	} {
		if got := policyName(c.stored, c.annotated, c.tier); got != c.want {
			t.Errorf("%s: %q", c.rule, got)
		}
	}
}

func TestStoredSpellingOfPolicies(t *testing.T) {
	old := model.Key{Kind: model.KindNetworkPolicy, Namespace: "ns", Name: "default.web"}
	const raw = `{"kind":"NetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.web","namespace":"ns","uid":"u","creationTimestamp":"2020-01-01T00:00:00Z"},` +
		`"spec":{"egress":[{"action":"Allow","source":{},"destination":{}}],"selector":"has(a)"}}`
	o := Decode(old, []byte(raw), 5)
	p, ok := o.Value.(*v3.NetworkPolicy)
	if !ok || o.Err != nil {
		t.Fatal(o.Err)
	}
	if p.Name != "web" || p.Spec.Tier != "default" || p.Labels[model.LabelTier] != "default" ||
		!reflect.DeepEqual(p.Spec.Types, []v3.PolicyType{"Egress"}) {
		t.Errorf("read %+v", p)
	}
	if same, err := Encode(o); err != nil || string(same) != raw {
		t.Errorf("unchanged it became %s, %v", same, err)
	}
	next := o.Clone()
	next.Value.(*v3.NetworkPolicy).Spec.Selector = "has(b)"
	if err := PrepareUpdate(next); err != nil {
		t.Fatal(err)
	}
	if got, err := Encode(next); err != nil ||
		!reflect.DeepEqual(exact(t, got), exact(t, []byte(strings.Replace(raw, "has(a)", "has(b)", 1)))) {
		t.Errorf("changed it became %s, %v", got, err)
	}

	fresh := model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: "ns"}, &v3.NetworkPolicy{})
	fresh.Metadata().SetName("web")
	fresh.Metadata().SetAnnotations(map[string]string{model.AnnotationMetadata: `{"name":"lie"}`, "mine": "x"})
	if err := PrepareCreate(fresh, testTime); err != nil {
		t.Fatal(err)
	}
	b, err := Encode(fresh)
	if err != nil || !strings.Contains(string(b),
		`"annotations":{"mine":"x","projectcalico.org/metadata":"{\"name\":\"web\"}"}`) {
		t.Errorf("a new policy is stored as %s, %v", b, err)
	}
	if a := fresh.Metadata().GetAnnotations(); len(a) != 1 || a["mine"] != "x" {
		t.Errorf("the annotation of the datastore is seen: %v", a)
	}
	read := Decode(fresh.Key, b, 1)
	if a := read.Metadata().GetAnnotations(); len(a) != 1 || a["mine"] != "x" {
		t.Errorf("the annotation of the datastore is read: %v", a)
	}
}
