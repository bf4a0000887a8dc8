package felixconfig

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// The cluster's settings come first, then those of the oldest selecting object, then the node's own.
func TestFelixConfigurationsThatHoldForANode(t *testing.T) {
	felix := func(name, selector string, age time.Duration) *model.Object {
		f := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))}}
		f.Spec.NodeSelector = selector
		return model.NewObject(model.ResourceKey(model.KindFelixConfiguration, name), f)
	}
	node := model.NewObject(model.ResourceKey(model.KindNode, "n1"),
		&model.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"rack": "1"}}})
	for _, c := range []struct {
		name    string
		objects []*model.Object
		want    []string
	}{
		{"none", nil, nil},
		{"of the cluster and of nodes", []*model.Object{felix("default", "", 0), felix("node.n1", "", 0),
			felix("node.n2", "", 0)}, []string{"default", "node.n1"}},
		{"that selects the node", []*model.Object{node, felix("rack", "rack == '1'", 0), felix("node.n1", "", 0),
			felix("default", "", 0)}, []string{"default", "rack", "node.n1"}},
		{"that selects others", []*model.Object{node, felix("rack", "rack == '2'", 0)}, nil},
		{"that selects nothing", []*model.Object{node, felix("rack", "", 0)}, nil},
		{"of several the oldest", []*model.Object{node, felix("a", "all()", time.Hour),
			felix("b", "has(rack)", 2*time.Hour), felix("c", "rack == '2'", 3*time.Hour)}, []string{"b"}},
		{"of the same age by name", []*model.Object{node, felix("b", "all()", 0), felix("a", "all()", 0)},
			[]string{"a"}},
		{"what is no selector", []*model.Object{node, felix("a", "((", 0), felix("b", "all()", 0)}, []string{"b"}},
		{"a selector where it has no place", []*model.Object{node, felix("node.n2", "all()", 0)}, nil},
		{"without a node", []*model.Object{felix("a", "!has(rack)", 0)}, []string{"a"}},
	} {
		var got []string
		for name, f := range Applicable(model.NewSet(c.objects...), "n1") {
			got = append(got, name)
			if f.Name != name || !Concerns(name, "n1") {
				t.Errorf("%s: %s comes with %s", c.name, name, f.Name)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if Concerns("node.n2", "n1") {
		t.Error("another node's settings concern this one")
	}
}
