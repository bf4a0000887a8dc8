package ruleset

import (
	"maps"
	"slices"
	"strings"
)

// Difference returns the changes from the kernel's content, nil for no table, to the desired state, whether TakeChanges
// returned that already or not. Rules are compared by their IDs; chains, sets and maps that are not desired go. The Old
// of a chain has no rules, since the kernel does not return them. The cost is one pass over both.
func (t *Table) Difference(a *Actual) Changes {
	if a == nil {
		a = &Actual{}
	}
	c := Changes{Chains: t.chainDifference(a.Chains), Sets: t.setDifference(a.Sets), Maps: t.mapDifference(a.Maps)}
	c.sort()
	return c
}

func (c *Changes) sort() {
	slices.SortFunc(c.Chains, func(a, b ChainChange) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Sets, func(a, b SetChange) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.Maps, func(a, b MapChange) int { return strings.Compare(a.Name, b.Name) })
}

func (t *Table) chainDifference(actual map[string]ActualChain) []ChainChange {
	var list []ChainChange
	for name, chain := range t.chains {
		old, ok := actual[name]
		switch {
		case !ok:
			list = append(list, ChainChange{Name: name, New: chain})
		case !old.is(chain):
			list = append(list, ChainChange{Name: name, Old: &Chain{Name: name, Base: old.Base}, New: chain})
		}
	}
	for name, old := range actual {
		if t.chains[name] == nil {
			list = append(list, ChainChange{Name: name, Old: &Chain{Name: name, Base: old.Base}})
		}
	}
	return list
}

// is reports whether the kernel's chain is the desired one.
func (a ActualChain) is(c *Chain) bool {
	if !sameBase(a.Base, c.Base) || len(a.Rules) != len(c.Rules) {
		return false
	}
	for i, id := range a.Rules {
		if c.Rules[i].ID() != id {
			return false
		}
	}
	return true
}

func sameBase(a, b *Base) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func (t *Table) setDifference(actual map[string]ActualSet) []SetChange {
	var list []SetChange
	for name, s := range t.sets {
		old, ok := actual[name]
		if !ok || !s.sameKind(old.Set) {
			list = append(list, SetChange{Set: s.Set, Created: true, Deleted: ok, Add: sortedElements(s.elements.all)})
			continue
		}
		list = s.appendChange(list, slices.Values(old.Elements), hasElement(old.Elements))
	}
	for name, old := range actual {
		if t.sets[name] == nil {
			old.Name = name
			list = append(list, SetChange{Set: old.Set, Deleted: true})
		}
	}
	return list
}

func hasElement(list []Element) func(Element) bool {
	there := make(map[Element]struct{}, len(list))
	for _, e := range list {
		there[e] = struct{}{}
	}
	return func(e Element) bool { _, ok := there[e]; return ok }
}

func (t *Table) mapDifference(actual map[string]map[string]Verdict) []MapChange {
	var list []MapChange
	for name, m := range t.maps {
		old, ok := actual[name]
		if !ok {
			list = append(list, MapChange{Map: m.Map, Created: true, Add: maps.Clone(m.elements)})
			continue
		}
		list = appendMapChange(list, m.Map, old, m.elements)
	}
	for name := range actual {
		if t.maps[name] == nil {
			list = append(list, MapChange{Map: Map{Name: name}, Deleted: true})
		}
	}
	return list
}
