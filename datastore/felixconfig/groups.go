package felixconfig

import (
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Group are the nodes to which the same FelixConfigurations apply.
type Group struct {
	Nodes []string // in order
	// Spec has their settings, without those of their hosts.
	Spec model.FelixConfigurationSpec
}

// Groups returns the nodes by the FelixConfigurations that apply to them. A node with one of its own is a group. The
// cost is a merge for each group, and a look at the configurations with a nodeSelector for each node.
func Groups(r model.Reader) (list []Group) {
	own, choices, at := map[string]bool{}, selecting(r), map[string]int{}
	for k := range model.All[model.FelixConfiguration](r, model.KindFelixConfiguration) {
		if node, ok := strings.CutPrefix(k.Name, ownPrefix); ok {
			own[node] = true
		}
	}
	for k, n := range model.All[model.Node](r, model.KindNode) {
		selected := chosen(choices, n.Labels)
		id := selected
		if own[k.Name] {
			id = ownPrefix + k.Name // which selects no other
		}
		i, known := at[id]
		if !known {
			i = len(list)
			at[id], list = i, append(list, Group{Spec: merge(named(r, selected, k.Name))})
		}
		list[i].Nodes = append(list[i].Nodes, k.Name)
	}
	return list
}
