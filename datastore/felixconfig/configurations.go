package felixconfig

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// Applicable visits the settings for a node, by name: those of the cluster ("default"), then those whose nodeSelector
// matches the node's labels (the oldest of several, as in Calico), then the node's own ("node.NAME"). Later settings
// take priority.
func Applicable(r model.Reader, node string) iter.Seq2[string, *model.FelixConfiguration] {
	return func(yield func(string, *model.FelixConfiguration) bool) {
		named(r, selected(r, node), node)(yield)
	}
}

// named is Applicable for a node that a configuration selects; empty for none.
func named(r model.Reader, selected, node string) iter.Seq2[string, *model.FelixConfiguration] {
	return func(yield func(string, *model.FelixConfiguration) bool) {
		for _, name := range []string{"default", selected, ownPrefix + node} {
			f := model.Get[model.FelixConfiguration](r, model.ResourceKey(model.KindFelixConfiguration, name))
			if f != nil && !yield(name, f) {
				return
			}
		}
	}
}

// ownPrefix is the beginning of the names of nodes' own configurations.
const ownPrefix = "node."

// Concerns reports whether a FelixConfiguration of that name can apply to a node.
func Concerns(name, node string) bool {
	return !strings.HasPrefix(name, ownPrefix) || name == ownPrefix+node
}

// selected returns the name of the configuration that selects a node; empty for none.
func selected(r model.Reader, node string) string {
	list := selecting(r)
	if len(list) == 0 {
		return ""
	}
	var labels map[string]string
	if n := model.Get[model.Node](r, model.ResourceKey(model.KindNode, node)); n != nil {
		labels = n.Labels
	}
	return chosen(list, labels)
}

// choice is a configuration with a nodeSelector.
type choice struct {
	name     string
	created  metav1.Time
	selector *selector.Selector
}

// selecting returns the configurations with a nodeSelector; of several that match, the first one counts.
func selecting(r model.Reader) (list []choice) {
	for k, f := range model.All[model.FelixConfiguration](r, model.KindFelixConfiguration) {
		if f.Spec.NodeSelector == "" || k.Name == "default" || strings.HasPrefix(k.Name, ownPrefix) {
			continue
		}
		if s, err := selector.Parse(f.Spec.NodeSelector); err == nil {
			list = append(list, choice{k.Name, f.CreationTimestamp, s})
		}
	}
	slices.SortFunc(list, func(a, b choice) int {
		return cmp.Or(a.created.Compare(b.created.Time), strings.Compare(a.name, b.name))
	})
	return list
}

// chosen returns the name of the one that a node with labels has; empty for none.
func chosen(list []choice, labels map[string]string) string {
	for _, c := range list {
		if c.selector.Matches(labels) {
			return c.name
		}
	}
	return ""
}
