package felixconfig

import (
	"iter"
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// Applicable visits the settings for a node, by name: those of the cluster ("default"), then those whose nodeSelector
// matches the node's labels (the oldest of several, as in Calico), then the node's own ("node.NAME"). Later settings
// take priority.
func Applicable(r model.Reader, node string) iter.Seq2[string, *model.FelixConfiguration] {
	return func(yield func(string, *model.FelixConfiguration) bool) {
		for _, name := range []string{"default", selected(r, node), "node." + node} {
			f := model.Get[model.FelixConfiguration](r, model.ResourceKey(model.KindFelixConfiguration, name))
			if f != nil && !yield(name, f) {
				return
			}
		}
	}
}

// Concerns reports whether a FelixConfiguration of that name can apply to a node.
func Concerns(name, node string) bool {
	return !strings.HasPrefix(name, "node.") || name == "node."+node
}

// selected returns the name of the configuration that selects a node; empty for none.
func selected(r model.Reader, node string) string {
	var best *model.FelixConfiguration
	found := ""
	for k, f := range model.All[model.FelixConfiguration](r, model.KindFelixConfiguration) {
		if f.Spec.NodeSelector == "" || k.Name == "default" || strings.HasPrefix(k.Name, "node.") {
			continue
		}
		var labels map[string]string
		if n := model.Get[model.Node](r, model.ResourceKey(model.KindNode, node)); n != nil {
			labels = n.Labels
		}
		s, err := selector.Parse(f.Spec.NodeSelector)
		if err != nil || !s.Matches(labels) {
			continue
		}
		if best == nil || f.CreationTimestamp.Before(&best.CreationTimestamp) ||
			f.CreationTimestamp.Equal(&best.CreationTimestamp) && k.Name < found {
			best, found = f, k.Name
		}
	}
	return found
}
