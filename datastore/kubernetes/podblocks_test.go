package kubernetes

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

// The affinities of a Node follow its pod CIDRs, each change in one step with that of the Node. A version that cannot
// be used changes none.
func TestPodBlockEvents(t *testing.T) {
	key := model.ResourceKey(model.KindNode, "n1")
	update := func(revision int64, cidrs ...string) datastore.Event {
		n := &model.Node{Status: model.NodeStatus{PodCIDRs: cidrs}}
		return datastore.Event{Key: key, Revision: revision,
			Object: &model.Object{Key: key, Revision: revision, Value: n}}
	}
	unusable := update(4)
	unusable.Object.Err, unusable.Object.Value = errors.New("unusable"), nil
	synced := datastore.Event{Type: datastore.EventInSync, Kinds: []model.Kind{model.KindNode}}
	others := datastore.Event{Type: datastore.EventLost, Kinds: []model.Kind{model.KindIPPool}}
	const four, six, other = "host/n1/10.1.0.0/24", "host/n1/fd00::/64", "host/n1/10.2.0.0/24"
	for _, withNodes := range []bool{true, false} {
		t.Run(fmt.Sprint("with nodes ", withNodes), func(t *testing.T) {
			e := podBlockEvents{withNodes: withNodes, known: map[string]map[model.Key]*model.Object{}}
			for i, step := range []struct {
				event datastore.Event
				want  []string
			}{
				{update(1), nil},
				{update(2, "10.1.0.7/24", "nonsense", "fd00::/64"), []string{"+" + four, "+" + six}},
				{update(3, "10.1.0.0/24", "fd00::/64"), nil},
				{synced, nil},
				{unusable, nil},
				{others, nil},
				{update(5, "10.2.0.0/24", "fd00::/64"), []string{"-" + four, "+" + other}},
				{datastore.Event{Type: datastore.EventDelete, Key: key}, []string{"-" + other, "-" + six}},
				{datastore.Event{Type: datastore.EventDelete, Key: key}, nil},
			} {
				got := e.translate(step.event)
				var changes []string
				for j, g := range got {
					if g.More != (j < len(got)-1) {
						t.Errorf("step %d: event %d of %d has More %t", i, j, len(got), g.More)
					}
					switch {
					case len(step.event.Kinds) > 0:
						wantKinds := step.event.Kinds
						if wantKinds[0] == model.KindNode && withNodes {
							wantKinds = []model.Kind{model.KindNode, model.KindBlockAffinity}
						} else if wantKinds[0] == model.KindNode {
							wantKinds = []model.Kind{model.KindBlockAffinity}
						}
						if g.Type != step.event.Type || !slices.Equal(g.Kinds, wantKinds) {
							t.Errorf("step %d: %+v, want kinds %v", i, g, wantKinds)
						}
					case g.Key.Kind == model.KindNode:
						if j > 0 || !withNodes {
							t.Errorf("step %d: event %d is that of the Node", i, j)
						}
					case g.Type == datastore.EventDelete:
						changes = append(changes, "-"+g.Key.Name)
					default:
						changes = append(changes, "+"+g.Key.Name)
						if a := g.Object.Value.(*model.BlockAffinity); a.State != model.StateConfirmed ||
							g.Object.Revision != step.event.Revision || g.Object.Key != g.Key {
							t.Errorf("step %d: %+v", i, g.Object)
						}
					}
				}
				if !slices.Equal(changes, step.want) {
					t.Errorf("step %d: %q, want %q", i, changes, step.want)
				}
			}
		})
	}
}
