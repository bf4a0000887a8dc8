package felixconfig

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// The settings of a group are those of each of its nodes, and nodes are together unless they may differ.
func TestGroups(t *testing.T) {
	spec := func(prefix, selector string) (s model.FelixConfigurationSpec) {
		s.LogPrefix, s.NodeSelector = prefix, selector
		return s
	}
	nodes := func(racks ...string) (list []*model.Object) {
		for i, rack := range racks {
			name := fmt.Sprint("n", i+1)
			list = append(list, model.NewObject(model.ResourceKey(model.KindNode, name), &model.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": rack}}}))
		}
		return list
	}
	for _, c := range []struct {
		rule    string
		objects []*model.Object
		want    string
	}{
		{"no node", []*model.Object{felix("default", spec("all", ""))}, "[]"},
		{"nothing is set", nodes("a", "b", "a"), "[[n1 n2 n3]]"},
		{"of the cluster", append(nodes("a", "b", "a"), felix("default", spec("all", ""))), "[[n1 n2 n3]]"},
		{"of nodes, and of one that is gone", append(nodes("a", "b", "a", "b"), felix("node.n2", spec("own", "")),
			felix("node.n9", spec("gone", "")), felix("default", spec("all", ""))), "[[n1 n3 n4] [n2]]"},
		{"by selectors", append(nodes("a", "b", "c", "a"), felix("x", spec("a", "rack == 'a'")),
			felix("y", spec("b", "rack in {'a', 'b'}"))), "[[n1 n4] [n2] [n3]]"},
		{"by all of them", append(nodes("a", "b", "a", "a"), felix("x", spec("a", "rack == 'a'")),
			felix("default", spec("all", "")), felix("node.n3", spec("own", "rack == 'b'"))), "[[n1 n4] [n2] [n3]]"},
	} {
		r, got := model.NewSet(c.objects...), [][]string{}
		for _, g := range Groups(r) {
			got = append(got, g.Nodes)
			for _, n := range g.Nodes {
				if want := Merge(r, n, nil); !reflect.DeepEqual(g.Spec, want) {
					t.Errorf("%s: %s has %+v, want %+v", c.rule, n, g.Spec, want)
				}
			}
		}
		if slices.SortFunc(got, slices.Compare); fmt.Sprint(got) != c.want {
			t.Errorf("%s: %v, want %s", c.rule, got, c.want)
		}
	}
}
