package model

import (
	"iter"
	"strings"

	"github.com/manxnet/manx/datastore/selector"
)

// FelixConfigurations visits the settings for a node, by name: those of the cluster ("default"), then those whose
// nodeSelector matches the node's labels (the oldest of several, as in Calico), then the node's own ("node.NAME").
// Later settings take priority.
func FelixConfigurations(r Reader, node string) iter.Seq2[string, *FelixConfiguration] {
	return func(yield func(string, *FelixConfiguration) bool) {
		for _, name := range []string{"default", selectedFelixConfiguration(r, node), "node." + node} {
			f := Get[FelixConfiguration](r, ResourceKey(KindFelixConfiguration, name))
			if f != nil && !yield(name, f) {
				return
			}
		}
	}
}

// ConcernsFelix reports whether a FelixConfiguration of that name can apply to a node.
func ConcernsFelix(name, node string) bool {
	return !strings.HasPrefix(name, "node.") || name == "node."+node
}

// selectedFelixConfiguration returns the name of the configuration that selects a node; empty for none.
func selectedFelixConfiguration(r Reader, node string) string {
	var best *FelixConfiguration
	found := ""
	for k, f := range All[FelixConfiguration](r, KindFelixConfiguration) {
		if f.Spec.NodeSelector == "" || k.Name == "default" || strings.HasPrefix(k.Name, "node.") {
			continue
		}
		var labels map[string]string
		if n := Get[Node](r, ResourceKey(KindNode, node)); n != nil {
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
