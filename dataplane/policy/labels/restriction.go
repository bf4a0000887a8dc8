package labels

import (
	"github.com/manxnet/manx/datastore/selector"
)

// key is a label with a value, or, with any set, a label with whatever value.
type key struct {
	label, value string
	any          bool
}

// restriction is a necessary condition of a match: labels must have one of the keys, if it is restricted. Restricted to
// no keys, it never matches.
type restriction struct {
	restricted bool
	keys       []key
	cost       int // how many have one of the keys
}

// restrict finds the least costly restriction of a part of a selector, or of its opposite. size returns how many items
// have a key.
func restrict(n selector.Node, opposite bool, size func(key) int) restriction {
	one := func(k key) restriction { return restriction{true, []key{k}, size(k)} }
	switch n := n.(type) {
	case selector.All, selector.Global:
		return restriction{restricted: opposite}
	case selector.Has:
		if !opposite {
			return one(key{label: n.Label, any: true})
		}
	case selector.Comparison:
		switch {
		case n.Op == selector.Equal && !opposite, n.Op == selector.NotEqual && opposite:
			return one(key{label: n.Label, value: n.Value})
		case n.Op != selector.NotEqual && !opposite:
			return one(key{label: n.Label, any: true})
		}
	case selector.In:
		if n.Not == opposite {
			parts := make([]restriction, len(n.Values))
			for i, v := range n.Values {
				parts[i] = one(key{label: n.Label, value: v})
			}
			return either(parts)
		}
	case selector.Not:
		return restrict(n.Operand, !opposite, size)
	case selector.And:
		return join(n.Operands, opposite, opposite, size)
	case selector.Or:
		return join(n.Operands, opposite, !opposite, size)
	}
	return restriction{}
}

// join restricts a conjunction, or with any a disjunction, of parts or of their opposites.
func join(operands []selector.Node, opposite, any bool, size func(key) int) restriction {
	parts := make([]restriction, len(operands))
	for i, o := range operands {
		parts[i] = restrict(o, opposite, size)
	}
	if any {
		return either(parts)
	}
	return cheapest(parts)
}

// either is the restriction for a match of any part. It is restricted if all are.
func either(parts []restriction) restriction {
	all := restriction{restricted: true}
	for _, p := range parts {
		if !p.restricted {
			return restriction{}
		}
		all.keys = append(all.keys, p.keys...)
		all.cost += p.cost
	}
	return all
}

// cheapest is the best of the restrictions of all parts. Of two that cost the same a label with a value is better than
// a mere label, of which there may be many before long.
func cheapest(parts []restriction) restriction {
	var best restriction
	for _, p := range parts {
		if p.restricted && (!best.restricted || p.cost < best.cost || p.cost == best.cost && p.broad() < best.broad()) {
			best = p
		}
	}
	return best
}

func (r restriction) broad() int {
	sum := 0
	for _, k := range r.keys {
		if k.any {
			sum++
		}
	}
	return sum
}
