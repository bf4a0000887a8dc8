package ruleset

import (
	"iter"
	"maps"
	"slices"
)

// Table is the desired content of the table, which changes step by step, and records the changes since the last
// TakeChanges. The cost of each method is proportional to the change. Not safe for concurrent use.
type Table struct {
	chains map[string]*Chain
	sets   map[string]*setState
	maps   map[string]*mapState
	hooked [Postrouting + 1][]*Chain // the base chains of each hook in the kernel's order of evaluation

	// The content before the changes since the last TakeChanges; nil: absent.
	oldChains map[string]*Chain
	oldSets   map[string]*setState
	oldMaps   map[string]*mapState
	dirtySets map[string]bool // have elements that changed
	dirtyMaps map[string]bool
}

type setState struct {
	Set
	elements elements
	fresh    bool // made after the last TakeChanges: changed is not kept
	// changed records of each touched element whether it was there before. nil for none.
	changed map[Element]bool
}

type mapState struct {
	Map
	elements map[string]Verdict
	fresh    bool
	changed  map[string]Verdict // the earlier content; the zero Verdict: absent
}

// NewTable makes an empty table.
func NewTable() *Table {
	return &Table{
		chains: map[string]*Chain{}, sets: map[string]*setState{}, maps: map[string]*mapState{},
		oldChains: map[string]*Chain{}, oldSets: map[string]*setState{}, oldMaps: map[string]*mapState{},
		dirtySets: map[string]bool{}, dirtyMaps: map[string]bool{},
	}
}

// SetChain makes c a chain of the table, in the place of one of the same name. c must not be changed any more.
func (t *Table) SetChain(c *Chain) {
	old := t.chains[c.Name]
	if old != nil && old.Equal(c) {
		return
	}
	t.rememberChain(c.Name, old)
	t.unhook(old)
	t.hook(c)
	t.chains[c.Name] = c
}

// DeleteChain removes a chain. Nothing may jump to it when the changes are next taken.
func (t *Table) DeleteChain(name string) {
	if old := t.chains[name]; old != nil {
		t.rememberChain(name, old)
		t.unhook(old)
		delete(t.chains, name)
	}
}

func (t *Table) rememberChain(name string, old *Chain) {
	if _, ok := t.oldChains[name]; !ok {
		t.oldChains[name] = old
	}
}

// AddSet makes an empty set, unless it exists. One of another type or kind is replaced.
func (t *Table) AddSet(s Set) {
	if old := t.sets[s.Name]; old != nil {
		if old.sameKind(s) {
			old.Comment = s.Comment
			return
		}
		t.DeleteSet(s.Name)
	}
	if _, ok := t.oldSets[s.Name]; !ok {
		t.oldSets[s.Name] = nil
	}
	t.sets[s.Name] = &setState{Set: s, elements: newElements(s), fresh: true}
}

func (s Set) sameKind(o Set) bool { return s.Type == o.Type && s.Interval == o.Interval }

// DeleteSet removes a set with its elements. No rule may name it when the changes are next taken.
func (t *Table) DeleteSet(name string) {
	s := t.sets[name]
	if s == nil {
		return
	}
	if _, ok := t.oldSets[name]; !ok {
		t.oldSets[name] = s
	}
	delete(t.sets, name)
}

// AddElement puts e into an existing set. It ignores fields that elements of its type do not use, and a prefix's bits
// beyond its length; an element of the other family is left out.
func (t *Table) AddElement(set string, e Element) {
	if s := t.sets[set]; s.elements.add(e) {
		t.touch(s, e, false)
	}
}

// RemoveElement takes e out of a set, if the set exists.
func (t *Table) RemoveElement(set string, e Element) {
	if s := t.sets[set]; s != nil && s.elements.remove(e) {
		t.touch(s, e, true)
	}
}

func (t *Table) touch(s *setState, e Element, was bool) {
	if s.fresh {
		return
	}
	e, _ = s.elements.normal(e)
	t.dirtySets[s.Name] = true
	if s.changed == nil {
		s.changed = map[Element]bool{}
	}
	if before, ok := s.changed[e]; ok && before != was {
		delete(s.changed, e) // back to the earlier content
	} else {
		s.changed[e] = was
	}
}

// AddMap makes an empty verdict map unless it exists.
func (t *Table) AddMap(m Map) {
	if old := t.maps[m.Name]; old != nil {
		old.Comment = m.Comment
		return
	}
	if _, ok := t.oldMaps[m.Name]; !ok {
		t.oldMaps[m.Name] = nil
	}
	t.maps[m.Name] = &mapState{Map: m, elements: map[string]Verdict{}, fresh: true}
}

// DeleteMap removes a map with its elements. No rule may name it when the changes are next taken.
func (t *Table) DeleteMap(name string) {
	m := t.maps[name]
	if m == nil {
		return
	}
	if _, ok := t.oldMaps[name]; !ok {
		t.oldMaps[name] = m
	}
	delete(t.maps, name)
}

// SetVerdict sets the entry of an existing map for an interface; the zero Verdict removes it.
func (t *Table) SetVerdict(name, iface string, v Verdict) {
	m := t.maps[name]
	if m == nil && v == (Verdict{}) {
		return
	}
	old := m.elements[iface]
	if old == v {
		return
	}
	if v == (Verdict{}) {
		delete(m.elements, iface)
	} else {
		m.elements[iface] = v
	}
	if m.fresh {
		return
	}
	t.dirtyMaps[name] = true
	if m.changed == nil {
		m.changed = map[string]Verdict{}
	}
	if before, ok := m.changed[iface]; !ok {
		m.changed[iface] = old
	} else if before == v {
		delete(m.changed, iface)
	}
}

// Chain returns a chain, nil if there is none of that name.
func (t *Table) Chain(name string) *Chain { return t.chains[name] }

// Set returns a set and how many elements it has.
func (t *Table) Set(name string) (s Set, elements int, ok bool) {
	if state := t.sets[name]; state != nil {
		return state.Set, state.elements.len(), true
	}
	return Set{}, 0, false
}

// Contains reports whether the very element is in a set.
func (t *Table) Contains(set string, e Element) bool {
	if s := t.sets[set]; s != nil {
		return s.elements.has(e)
	}
	return false
}

// Elements visits a set's elements, in no order.
func (t *Table) Elements(set string) iter.Seq[Element] {
	if s := t.sets[set]; s != nil {
		return s.elements.all
	}
	return func(func(Element) bool) {}
}

// verdict returns the entry of a map for an interface, the zero Verdict if there is none.
func (t *Table) verdict(name, iface string) Verdict {
	if m := t.maps[name]; m != nil {
		return m.elements[iface]
	}
	return Verdict{}
}

// Verdicts visits the entries of a map, in no order.
func (t *Table) Verdicts(name string) iter.Seq2[string, Verdict] {
	if m := t.maps[name]; m != nil {
		return maps.All(m.elements)
	}
	return func(func(string, Verdict) bool) {}
}

// Chains lists the names of the chains in order.
func (t *Table) Chains() []string { return slices.Sorted(maps.Keys(t.chains)) }

// Sets lists the names of the sets in order.
func (t *Table) Sets() []string { return slices.Sorted(maps.Keys(t.sets)) }

// Maps lists the names of the maps in order.
func (t *Table) Maps() []string { return slices.Sorted(maps.Keys(t.maps)) }
