package datastore

import (
	"fmt"
	"slices"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

// In visits the objects of a namespace that All visits, in the same order, even with similar names.
func TestObjectsOfANamespace(t *testing.T) {
	tables := NewTables(zap.NewNop(), "")
	var events []Event
	put := func(k model.Key, v any) {
		events = append(events, Event{Type: EventUpdate, Key: k, Object: model.NewObject(k, v), Revision: 1})
	}
	for _, ns := range []string{"a", "a-b", "aa", "b"} {
		for i := range 20 {
			put(model.Key{Kind: model.KindNetworkPolicy, Namespace: ns, Name: fmt.Sprint("p", i)}, &v3.NetworkPolicy{})
		}
	}
	for _, host := range []string{"n1", "n1.x", "n10", "n2", "n1-x"} {
		for i := range 20 {
			name := fmt.Sprintf("host/%s/10.0.%d.0/24", host, i)
			put(model.Key{Kind: model.KindBlockAffinity, Name: name}, &model.BlockAffinity{})
		}
	}
	put(model.Key{Kind: model.KindBlockAffinity, Name: "virtual/n1/10.1.0.0/24"}, &model.BlockAffinity{})
	tables.Apply(append(events, Event{Type: EventInSync, Revision: 1})...)
	s := tables.Snapshot()
	for _, c := range []struct {
		kind      model.Kind
		namespace string
		want      int
	}{
		{model.KindNetworkPolicy, "", 80}, {model.KindNetworkPolicy, "a", 20}, {model.KindNetworkPolicy, "a-b", 20},
		{model.KindNetworkPolicy, "b", 20}, {model.KindNetworkPolicy, "c", 0}, {model.KindBlockAffinity, "", 101},
		{model.KindBlockAffinity, "host/n1", 20}, {model.KindBlockAffinity, "host/n10", 20},
		{model.KindBlockAffinity, "host/n", 0}, {model.KindBlockAffinity, "virtual/n1", 1}, {model.KindNode, "", 0},
	} {
		got := slices.Collect(s.In(c.kind, c.namespace))
		var want []*model.Object
		for o := range s.All(c.kind) {
			if o.Key.In(c.namespace) {
				want = append(want, o)
			}
		}
		if !slices.Equal(got, want) || len(got) != c.want {
			t.Errorf("%s of %q: %d objects, want %d", c.kind, c.namespace, len(got), c.want)
		}
	}
}
