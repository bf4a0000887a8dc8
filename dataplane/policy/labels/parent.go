package labels

import (
	"slices"
	"strings"
)

// parent is a profile: it hands its labels down to items.
type parent[I, S comparable] struct {
	id      uint64
	name    string
	labels  []*pair[I, S] // in the order of names
	classes set[class[I, S]]
}

// name is a label whatever its value is.
type name[I, S comparable] struct {
	label     string
	values    map[string]*pair[I, S]
	classes   int // with this label of their own
	selectors set[entry[I, S]]
}

// pair is a label with a value. It exists as long as an item, a parent or a selector needs it.
type pair[I, S comparable] struct {
	id        uint64
	name      *name[I, S]
	value     string
	classes   set[class[I, S]]
	parents   set[parent[I, S]]
	selectors set[entry[I, S]]
}

// SetParent sets the labels that a parent hands down; nil: it does not exist (any more).
func (x *Index[I, S]) SetParent(name string, labels map[string]string) {
	p := x.parent(name)
	if p.has(labels) {
		x.dropParent(p)
		return
	}
	before := p.labels
	p.labels = make([]*pair[I, S], 0, len(labels))
	for label, value := range labels {
		p.labels = append(p.labels, x.pair(label, value))
	}
	slices.SortFunc(p.labels, func(a, b *pair[I, S]) int { return strings.Compare(a.name.label, b.name.label) })
	for _, l := range before {
		l.parents.remove(p)
	}
	for _, l := range p.labels {
		l.parents.add(p)
	}
	for _, l := range before {
		x.dropPair(l)
	}
	for c := range p.classes.all() {
		x.evaluate(c)
	}
	x.dropParent(p)
}

func (p *parent[I, S]) has(labels map[string]string) bool {
	if len(p.labels) != len(labels) {
		return false
	}
	for _, l := range p.labels {
		if v, ok := labels[l.name.label]; !ok || v != l.value {
			return false
		}
	}
	return true
}

// parent finds or makes a parent.
func (x *Index[I, S]) parent(name string) *parent[I, S] {
	p := x.parents[name]
	if p == nil {
		x.lastID++
		p = &parent[I, S]{id: x.lastID, name: name}
		x.parents[name] = p
	}
	return p
}

// dropParent removes a parent that hands nothing down and that no item names.
func (x *Index[I, S]) dropParent(p *parent[I, S]) {
	if len(p.labels) == 0 && p.classes.len() == 0 {
		delete(x.parents, p.name)
	}
}

// name finds or makes a name.
func (x *Index[I, S]) name(label string) *name[I, S] {
	n := x.names[label]
	if n == nil {
		n = &name[I, S]{label: label, values: map[string]*pair[I, S]{}}
		x.names[label] = n
	}
	return n
}

func (x *Index[I, S]) dropName(n *name[I, S]) {
	if len(n.values) == 0 && n.selectors.len() == 0 {
		delete(x.names, n.label)
	}
}

// pair finds or makes a pair.
func (x *Index[I, S]) pair(label, value string) *pair[I, S] {
	n := x.name(label)
	p := n.values[value]
	if p == nil {
		x.lastID++
		p = &pair[I, S]{id: x.lastID, name: n, value: value}
		n.values[value] = p
	}
	return p
}

// dropPair forgets a pair that is no longer needed.
func (x *Index[I, S]) dropPair(p *pair[I, S]) {
	if p.classes.len() == 0 && p.parents.len() == 0 && p.selectors.len() == 0 {
		delete(p.name.values, p.value)
		x.dropName(p.name)
	}
}
