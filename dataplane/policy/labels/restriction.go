package labels

import (
	"strings"

	"github.com/manxnet/manx/datastore/selector"
)

// key is a label with a value, or, with any set, a label with whatever value.
type key struct {
	label, value string
	any          bool
}

// restriction lists keys of which an item must have at least one to match; nil if a match needs none in particular.
func restriction(n selector.Node) []key {
	switch n := n.(type) {
	case selector.Has:
		return []key{{label: n.Label, any: true}}
	case selector.Comparison:
		switch n.Op {
		case selector.Equal:
			return []key{{label: n.Label, value: n.Value}}
		case selector.NotEqual:
			return nil
		}
		return []key{{label: n.Label, any: true}}
	case selector.In:
		if n.Not || len(n.Values) == 0 {
			return nil
		}
		keys := make([]key, len(n.Values))
		for i, v := range n.Values {
			keys[i] = key{label: n.Label, value: v}
		}
		return keys
	case selector.And:
		var best []key
		for _, o := range n.Operands {
			if r := restriction(o); r != nil && (best == nil || weight(r) < weight(best)) {
				best = r
			}
		}
		return best
	case selector.Or:
		var all []key
		for _, o := range n.Operands {
			r := restriction(o)
			if r == nil {
				return nil
			}
			all = append(all, r...)
		}
		return all
	}
	return nil
}

// weight guesses how little a restriction restricts. A namespace is a small part of a cluster; that something is a pod
// says next to nothing.
func weight(keys []key) int {
	sum := 0
	for _, k := range keys {
		switch {
		case strings.HasSuffix(k.label, "projectcalico.org/orchestrator"):
			sum += 10000
		case k.any:
			sum += 1000
		case strings.HasSuffix(k.label, "projectcalico.org/namespace") || strings.HasSuffix(k.label, "projectcalico.org/name"):
			sum += 10
		default:
			sum += 15
		}
	}
	return sum
}
