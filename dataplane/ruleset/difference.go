package ruleset

import (
	"maps"
	"slices"
	"strings"
)

// Difference returns what leads from what the kernel has, nil for no table, to the desired state, whether that was taken
// already or not. Rules are compared by their IDs; chains, sets and maps that are not desired go. The Old of a chain has no
// rules, since the kernel cannot tell them. The elements of each set of a must be distinct. It costs one pass over both.
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

// is tells whether the kernel's chain is the desired one.
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
		if !ok || old.Type != s.Type || old.Interval != s.Interval {
			list = append(list, SetChange{Set: s.Set, Created: true, Deleted: ok, Add: sortedElements(maps.Keys(s.elements))})
			continue
		}
		if c := s.difference(old.Elements); len(c.Add)+len(c.Remove) > 0 {
			list = append(list, c)
		}
	}
	for name, old := range actual {
		if t.sets[name] == nil {
			old.Name = name
			list = append(list, SetChange{Set: old.Set, Deleted: true})
		}
	}
	return list
}

func (s *setState) difference(actual []Element) SetChange {
	c := SetChange{Set: s.Set}
	for _, e := range actual {
		if _, ok := s.elements[e]; !ok {
			c.Remove = append(c.Remove, e)
		}
	}
	if missing := len(s.elements) - (len(actual) - len(c.Remove)); missing > 0 {
		there := make(map[Element]struct{}, len(actual))
		for _, e := range actual {
			there[e] = struct{}{}
		}
		for e := range s.elements {
			if _, ok := there[e]; !ok {
				c.Add = append(c.Add, e)
			}
		}
	}
	slices.SortFunc(c.Add, CompareElements)
	slices.SortFunc(c.Remove, CompareElements)
	return c
}

func (t *Table) mapDifference(actual map[string]map[string]Verdict) []MapChange {
	var list []MapChange
	for name, m := range t.maps {
		old, ok := actual[name]
		if !ok {
			list = append(list, MapChange{Map: m.Map, Created: true, Add: maps.Clone(m.elements)})
			continue
		}
		if c := verdictChange(m.Map, old, m.elements); len(c.Add)+len(c.Remove) > 0 {
			list = append(list, c)
		}
	}
	for name := range actual {
		if t.maps[name] == nil {
			list = append(list, MapChange{Map: Map{Name: name}, Deleted: true})
		}
	}
	return list
}

// verdictChange is what leads from one content of a map to another.
func verdictChange(m Map, old, now map[string]Verdict) MapChange {
	c := MapChange{Map: m, Add: map[string]Verdict{}, Remove: map[string]Verdict{}}
	for k, v := range old {
		if now[k] != v {
			c.Remove[k] = v
		}
	}
	for k, v := range now {
		if old[k] != v {
			c.Add[k] = v
		}
	}
	return c
}
