package nft

import (
	"cmp"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// unit is the least that is left out when the kernel refuses something: the content of a chain, or the elements of a
// set or map.
type unit struct {
	kind kind
	name string
}

type kind string

const (
	chain kind = "chain"
	set   kind = "set"
	vmap  kind = "map"
)

func (u unit) String() string { return string(u.kind) + " " + u.name }

// units lists the changed units in the order of the search for refused ones: units that others need come first, so that
// a policy's chain is replaced rather than the rules that lead to it.
func units(c ruleset.Changes) []unit {
	type ranked struct {
		unit
		rank int
	}
	var list []ranked
	for _, s := range c.Sets {
		list = append(list, ranked{unit{set, s.Name}, choose(s.Deleted && !s.Created, 6, 0)})
	}
	for _, ch := range c.Chains {
		rank := 2
		switch {
		case ch.New == nil:
			rank = 5
		case ch.New.Base != nil:
			rank = 1
		}
		list = append(list, ranked{unit{chain, ch.Name}, rank})
	}
	for _, m := range c.Maps {
		list = append(list, ranked{unit{vmap, m.Name}, choose(m.Deleted, 4, 3)})
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), strings.Compare(a.name, b.name))
	})
	sorted := make([]unit, len(list))
	for i, r := range list {
		sorted[i] = r.unit
	}
	return sorted
}

func choose(condition bool, yes, no int) int {
	if condition {
		return yes
	}
	return no
}
