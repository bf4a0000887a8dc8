package mistakes_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/controllers/calicotest"
	"github.com/manxnet/manx/controllers/mistakes"
	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// The objects that Calico's programs have stored break no rule.
func TestCalicosObjectsHaveNoMistakes(t *testing.T) {
	all, n := calicotest.Objects(t), 0
	shared, further := mistakes.Kinds()
	for _, kind := range append(shared, further...) {
		for o := range all.All(kind) {
			n++
			for _, e := range mistakes.Broken(all, o) {
				t.Errorf("%s: %v", o.Key, e)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d objects were judged", n)
	}
}

// policy returns a policy of the tier web, with nets in its rules.
func policy(name string, nets ...string) *model.Object {
	p := &v3.GlobalNetworkPolicy{}
	p.Name, p.Spec.Tier = name, "web"
	for _, net := range nets {
		p.Spec.Ingress = append(p.Spec.Ingress, v3.Rule{Action: v3.Allow, Source: v3.EntityRule{Nets: []string{net}}})
	}
	return model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, name), p)
}

// The texts follow the objects, and are short.
func TestFinder(t *testing.T) {
	tier := &model.Tier{}
	tier.Name = "web"
	bits := policy("bits", "10.1.2.3/8")
	var many []string
	for i := range 8 {
		many = append(many, fmt.Sprintf("10.1.2.%d/8", i+1))
	}
	unusable := &model.Object{Key: bits.Key, Err: errors.New("it cannot be used")}
	update := func(o *model.Object) datastore.Event {
		return datastore.Event{Type: datastore.EventUpdate, Key: o.Key, Object: o}
	}
	for name, c := range map[string]struct {
		then []datastore.Event
		want map[string][]string // by the name of a policy, parts of its text
		not  string
	}{
		"a broken rule": {nil,
			map[string][]string{"bits": {"10.1.2.3/8", "must not have host bits set"}}, "more"},
		"an object that is mended":            {[]datastore.Event{update(policy("bits", "10.0.0.0/8"))}, nil, ""},
		"an object that cannot be used later": {[]datastore.Event{update(unusable)}, nil, ""},
		"an object that is removed": {[]datastore.Event{{Type: datastore.EventDelete,
			Key: bits.Key}}, nil, ""},
		"a relation that is broken later": {[]datastore.Event{{Type: datastore.EventDelete,
			Key: model.ResourceKey(model.KindTier, "web")}},
			map[string][]string{"bits": {"10.1.2.3/8", "must be a tier that exists"}}, "more"},
		"many broken rules": {[]datastore.Event{update(policy("bits", many...))},
			map[string][]string{"bits": {"10.1.2.1/8", "10.1.2.5/8", "and 3 more"}}, "10.1.2.6"},
		"a long value": {[]datastore.Event{update(policy("bits", "x"+strings.Repeat("\u00e4", 500)))},
			map[string][]string{"bits": {strings.Repeat("\u00e4", 49) + `..."`}}, strings.Repeat("\u00e4", 50)},
	} {
		tables := datastore.NewTables(zap.NewNop(), "")
		tables.Apply(update(model.NewObject(model.ResourceKey(model.KindTier, "web"), tier)), update(bits),
			datastore.Event{Type: datastore.EventInSync})
		var f mistakes.Finder
		f.Update(tables.Snapshot())
		for i, e := range c.then {
			e.Revision = int64(i + 1)
			if e.Object != nil {
				e.Object.Revision = e.Revision
			}
			tables.Apply(e)
			f.Update(tables.Snapshot())
		}
		have := map[string]string{}
		for o, text := range f.All() {
			have[o.Key.Name] = text
		}
		for object, parts := range c.want {
			for _, part := range parts {
				if !strings.Contains(have[object], part) {
					t.Errorf("%s: the text about %s lacks %q: %q", name, object, part, have[object])
				}
			}
		}
		if len(have) != len(c.want) {
			t.Errorf("%s: there are texts about %v", name, have)
		}
		for _, text := range have {
			if c.not != "" && strings.Contains(text, c.not) || !utf8.ValidString(text) {
				t.Errorf("%s: %q", name, text)
			}
		}
	}
}
