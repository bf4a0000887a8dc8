package ruleset

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// Changes leads from one state of a table to another, to be made in one transaction: sets, maps and chains in order of
// their names.
type Changes struct {
	Chains []ChainChange
	Sets   []SetChange
	Maps   []MapChange
}

// ChainChange is the difference of one chain. Old is nil for a new one, New is nil for one that goes.
type ChainChange struct {
	Name     string
	Old, New *Chain
}

// SetChange is the difference of one set. A set that goes lists no elements. One that is replaced by one of another
// type has both Created and Deleted.
type SetChange struct {
	Set
	Created, Deleted bool
	Add, Remove      []Element // to be removed first
}

// MapChange is the difference of one map. A map that goes lists no elements; an element that changes is in both lists.
type MapChange struct {
	Map
	Created, Deleted bool
	Add, Remove      map[string]Verdict // to be removed first
}

// Empty reports whether there is nothing to do.
func (c Changes) Empty() bool { return len(c.Chains) == 0 && len(c.Sets) == 0 && len(c.Maps) == 0 }

// Counters returns the names of the counters that the new rules name, in order.
func (c Changes) Counters() []string {
	return countersOf(func(yield func(*Chain) bool) {
		for _, ch := range c.Chains {
			if ch.New != nil && !yield(ch.New) {
				return
			}
		}
	})
}

func countersOf(chains iter.Seq[*Chain]) []string {
	names := map[string]bool{}
	for c := range chains {
		for i := range c.Rules {
			if name := c.Rules[i].CountedBy; name != "" {
				names[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// TakeChanges returns the changes since its last call, and clears them.
func (t *Table) TakeChanges() Changes {
	var c Changes
	for name, old := range t.oldChains {
		if n := t.chains[name]; n != old && !(n != nil && n.Equal(old)) {
			c.Chains = append(c.Chains, ChainChange{Name: name, Old: old, New: n})
		}
	}
	c.Sets = t.takeSets()
	c.Maps = t.takeMaps()
	c.sort()
	clear(t.oldChains)
	clear(t.oldSets)
	clear(t.oldMaps)
	return c
}

func (t *Table) takeSets() []SetChange {
	var list []SetChange
	for name, old := range t.oldSets {
		s := t.sets[name]
		switch {
		case s == nil && old == nil: // came and went
		case s == nil:
			list = append(list, SetChange{Set: old.Set, Deleted: true})
		case old == nil || !old.sameKind(s.Set):
			list = append(list, SetChange{Set: s.Set, Created: true, Deleted: old != nil,
				Add: sortedElements(s.elements.all)})
		default:
			list = s.appendChange(list, old.before, old.hadBefore)
		}
		if s != nil {
			s.fresh = false
		}
	}
	for name := range t.dirtySets {
		if s := t.sets[name]; s != nil && len(s.changed) > 0 {
			list = append(list, s.takeChanged())
		}
	}
	clear(t.dirtySets)
	return list
}

func (s *setState) takeChanged() SetChange {
	c := SetChange{Set: s.Set}
	for e, was := range s.changed {
		if was {
			c.Remove = append(c.Remove, e)
		} else {
			c.Add = append(c.Add, e)
		}
	}
	slices.SortFunc(c.Add, CompareElements)
	slices.SortFunc(c.Remove, CompareElements)
	s.changed = nil
	return c
}

// before visits the elements of a set at the last TakeChanges.
func (s *setState) before(yield func(Element) bool) {
	for e := range s.elements.all {
		if _, new := s.changed[e]; !new && !yield(e) {
			return
		}
	}
	for e, was := range s.changed {
		if was && !yield(e) {
			return
		}
	}
}

func (s *setState) hadBefore(e Element) bool {
	if was, ok := s.changed[e]; ok {
		return was
	}
	return s.elements.has(e)
}

// appendChange appends the change from an old content to that of the set, unless they are the same.
func (s *setState) appendChange(list []SetChange, old iter.Seq[Element], had func(Element) bool) []SetChange {
	c := SetChange{Set: s.Set, Add: without(s.elements.all, had), Remove: without(old, s.elements.has)}
	if len(c.Add)+len(c.Remove) == 0 {
		return list
	}
	return append(list, c)
}

// without returns, in order, the elements of one set that another one has not.
func without(seq iter.Seq[Element], has func(Element) bool) []Element {
	var list []Element
	for e := range seq {
		if !has(e) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, CompareElements)
	return slices.Compact(list) // a dump of the kernel may have an element twice
}

func (t *Table) takeMaps() []MapChange {
	var list []MapChange
	for name, old := range t.oldMaps {
		m := t.maps[name]
		switch {
		case m == nil && old == nil: // came and went
		case m == nil:
			list = append(list, MapChange{Map: Map{Name: name}, Deleted: true})
		case old == nil:
			list = append(list, MapChange{Map: m.Map, Created: true, Add: maps.Clone(m.elements)})
		default:
			list = appendMapChange(list, m.Map, old.before(), m.elements)
		}
		if m != nil {
			m.fresh = false
		}
	}
	for name := range t.dirtyMaps {
		m := t.maps[name]
		if m == nil || len(m.changed) == 0 {
			continue
		}
		c := MapChange{Map: m.Map, Add: map[string]Verdict{}, Remove: map[string]Verdict{}}
		for k, old := range m.changed {
			if old != (Verdict{}) {
				c.Remove[k] = old
			}
			if v, ok := m.elements[k]; ok {
				c.Add[k] = v
			}
		}
		list = append(list, c)
		m.changed = nil
	}
	clear(t.dirtyMaps)
	return list
}

// before returns the entries of a map at the last TakeChanges.
func (m *mapState) before() map[string]Verdict {
	old := maps.Clone(m.elements)
	for k, v := range m.changed {
		if v == (Verdict{}) {
			delete(old, k)
		} else {
			old[k] = v
		}
	}
	return old
}

// appendMapChange appends the change from one content of a map to another, unless they are the same.
func appendMapChange(list []MapChange, m Map, old, now map[string]Verdict) []MapChange {
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
	if len(c.Add)+len(c.Remove) == 0 {
		return list
	}
	return append(list, c)
}

func sortedElements(seq iter.Seq[Element]) []Element {
	return slices.SortedFunc(seq, CompareElements)
}

// CompareElements orders by address, protocol and port.
func CompareElements(a, b Element) int {
	return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Low, b.Low), cmp.Compare(a.High, b.High))
}
