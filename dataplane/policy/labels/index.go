package labels

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/selector"
)

// Index tells which items each selector matches and keeps that current. Not safe for concurrent use; the callbacks must not
// call it.
type Index[I, S comparable] struct {
	started, stopped func(S, I)

	items     map[I]*item[I, S]
	parents   map[string]*parent[I, S]
	selectors map[S]*entry[I, S]

	// What has a label: items by their own labels, parents by what they hand down.
	itemsBy   map[key]map[*item[I, S]]struct{}
	parentsBy map[key]map[*parent[I, S]]struct{}
	// Selectors by their restriction; always holds those without one.
	selectorsBy map[key]map[*entry[I, S]]struct{}
	always      map[*entry[I, S]]struct{}

	round uint64 // of the newest evaluation, so that none is done twice in one
}

type item[I, S comparable] struct {
	id      I
	own     []pair // sorted by name
	parents []*parent[I, S]
	matched []*entry[I, S]
	round   uint64
}

type pair struct{ name, value string }

type parent[I, S comparable] struct {
	name   string
	labels map[string]string // nil: does not exist
	items  map[*item[I, S]]struct{}
}

type entry[I, S comparable] struct {
	id       S
	selector *selector.Selector
	keys     []key
	matched  map[*item[I, S]]struct{}
	round    uint64
}

// New makes an empty index. started and stopped are told when a selector begins and ceases to match an item.
func New[I, S comparable](started, stopped func(S, I)) *Index[I, S] {
	return &Index[I, S]{
		started: started, stopped: stopped,
		items: map[I]*item[I, S]{}, parents: map[string]*parent[I, S]{}, selectors: map[S]*entry[I, S]{},
		itemsBy: map[key]map[*item[I, S]]struct{}{}, parentsBy: map[key]map[*parent[I, S]]struct{}{},
		selectorsBy: map[key]map[*entry[I, S]]struct{}{}, always: map[*entry[I, S]]struct{}{},
	}
}

// Get implements selector.Labels: own labels come first, then those of the parents in their order.
func (t *item[I, S]) Get(name string) (string, bool) {
	if i, ok := slices.BinarySearchFunc(t.own, name, func(p pair, n string) int { return strings.Compare(p.name, n) }); ok {
		return t.own[i].value, true
	}
	for _, p := range t.parents {
		if v, ok := p.labels[name]; ok {
			return v, true
		}
	}
	return "", false
}

// SetItem enters an item with its own labels and the names of the parents whose labels it inherits.
func (x *Index[I, S]) SetItem(id I, own map[string]string, parents []string) {
	t := x.items[id]
	if t == nil {
		t = &item[I, S]{id: id}
		x.items[id] = t
	} else if t.same(own, parents) {
		return
	}
	x.unpost(t)
	t.own = make([]pair, 0, len(own))
	for name, value := range own {
		t.own = append(t.own, pair{name, value})
	}
	slices.SortFunc(t.own, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	t.parents = make([]*parent[I, S], 0, len(parents))
	for _, name := range parents {
		p := x.parent(name)
		p.items[t] = struct{}{}
		t.parents = append(t.parents, p)
	}
	for _, p := range t.own {
		put(x.itemsBy, key{label: p.name, value: p.value}, t)
		put(x.itemsBy, key{label: p.name, any: true}, t)
	}
	x.evaluate(t)
}

func (t *item[I, S]) same(own map[string]string, parents []string) bool {
	if len(t.own) != len(own) || len(t.parents) != len(parents) {
		return false
	}
	for _, p := range t.own {
		if v, ok := own[p.name]; !ok || v != p.value {
			return false
		}
	}
	for i, p := range t.parents {
		if p.name != parents[i] {
			return false
		}
	}
	return true
}

// unpost forgets under which labels and parents an item can be found.
func (x *Index[I, S]) unpost(t *item[I, S]) {
	for _, p := range t.own {
		take(x.itemsBy, key{label: p.name, value: p.value}, t)
		take(x.itemsBy, key{label: p.name, any: true}, t)
	}
	for _, p := range t.parents {
		delete(p.items, t)
		x.forget(p)
	}
}

// DeleteItem removes an item.
func (x *Index[I, S]) DeleteItem(id I) {
	t := x.items[id]
	if t == nil {
		return
	}
	x.unpost(t)
	t.own, t.parents = nil, nil
	delete(x.items, id)
	for _, e := range t.matched {
		delete(e.matched, t)
		x.stopped(e.id, t.id)
	}
}

func (x *Index[I, S]) parent(name string) *parent[I, S] {
	p := x.parents[name]
	if p == nil {
		p = &parent[I, S]{name: name, items: map[*item[I, S]]struct{}{}}
		x.parents[name] = p
	}
	return p
}

// forget drops a parent that neither exists nor is named by anyone.
func (x *Index[I, S]) forget(p *parent[I, S]) {
	if p.labels == nil && len(p.items) == 0 {
		delete(x.parents, p.name)
	}
}

// SetParent says which labels a parent hands down; nil: it does not exist (any more).
func (x *Index[I, S]) SetParent(name string, labels map[string]string) {
	if x.parents[name] == nil && labels == nil {
		return
	}
	p := x.parent(name)
	if maps.Equal(p.labels, labels) && (p.labels == nil) == (labels == nil) {
		return
	}
	for n, v := range p.labels {
		take(x.parentsBy, key{label: n, value: v}, p)
		take(x.parentsBy, key{label: n, any: true}, p)
	}
	p.labels = maps.Clone(labels)
	for n, v := range labels {
		put(x.parentsBy, key{label: n, value: v}, p)
		put(x.parentsBy, key{label: n, any: true}, p)
	}
	for t := range p.items {
		x.evaluate(t)
	}
	x.forget(p)
}

// evaluate finds out anew which selectors match an item, among those that can.
func (x *Index[I, S]) evaluate(t *item[I, S]) {
	x.round++
	var now []*entry[I, S]
	try := func(list map[*entry[I, S]]struct{}) {
		for e := range list {
			if e.round != x.round {
				e.round = x.round
				if e.selector.MatchesLabels(t) {
					now = append(now, e)
				}
			}
		}
	}
	label := func(name, value string) {
		try(x.selectorsBy[key{label: name, value: value}])
		try(x.selectorsBy[key{label: name, any: true}])
	}
	try(x.always)
	for _, p := range t.own {
		label(p.name, p.value)
	}
	for _, p := range t.parents {
		for n, v := range p.labels {
			label(n, v)
		}
	}
	before := t.matched
	t.matched = now
	for _, e := range before {
		if !slices.Contains(now, e) {
			delete(e.matched, t)
			x.stopped(e.id, t.id)
		}
	}
	for _, e := range now {
		if _, ok := e.matched[t]; !ok {
			e.matched[t] = struct{}{}
			x.started(e.id, t.id)
		}
	}
}

// SetSelector enters a selector, or puts it in the place of the one of that id, and tells which items it matches.
func (x *Index[I, S]) SetSelector(id S, s *selector.Selector) {
	e := x.selectors[id]
	if e == nil {
		e = &entry[I, S]{id: id, matched: map[*item[I, S]]struct{}{}}
		x.selectors[id] = e
	} else if e.selector.String() == s.String() {
		return
	}
	x.unregister(e)
	e.selector, e.keys = s, restriction(s.Root())
	if e.keys == nil {
		x.always[e] = struct{}{}
	}
	for _, k := range e.keys {
		put(x.selectorsBy, k, e)
	}
	x.round++
	now := map[*item[I, S]]struct{}{}
	for t := range x.candidates(e) {
		if t.round != x.round {
			t.round = x.round
			if s.MatchesLabels(t) {
				now[t] = struct{}{}
			}
		}
	}
	before := e.matched
	e.matched = now
	for t := range before {
		if _, ok := now[t]; !ok {
			t.unmatch(e)
			x.stopped(e.id, t.id)
		}
	}
	for t := range now {
		if _, ok := before[t]; !ok {
			t.matched = append(t.matched, e)
			x.started(e.id, t.id)
		}
	}
}

func (x *Index[I, S]) unregister(e *entry[I, S]) {
	delete(x.always, e)
	for _, k := range e.keys {
		take(x.selectorsBy, k, e)
	}
}

// candidates are the items that have one of the labels that a match needs.
func (x *Index[I, S]) candidates(e *entry[I, S]) iter.Seq[*item[I, S]] {
	return func(yield func(*item[I, S]) bool) {
		if e.keys == nil {
			for _, t := range x.items {
				if !yield(t) {
					return
				}
			}
		}
		for _, k := range e.keys {
			for t := range x.itemsBy[k] {
				if !yield(t) {
					return
				}
			}
			for p := range x.parentsBy[k] {
				for t := range p.items {
					if !yield(t) {
						return
					}
				}
			}
		}
	}
}

// DeleteSelector removes a selector.
func (x *Index[I, S]) DeleteSelector(id S) {
	e := x.selectors[id]
	if e == nil {
		return
	}
	x.unregister(e)
	delete(x.selectors, id)
	for t := range e.matched {
		t.unmatch(e)
		x.stopped(e.id, t.id)
	}
}

func (t *item[I, S]) unmatch(e *entry[I, S]) {
	if i := slices.Index(t.matched, e); i >= 0 {
		last := len(t.matched) - 1
		t.matched[i], t.matched[last] = t.matched[last], nil
		t.matched = t.matched[:last]
	}
}

// Matches visits the items that a selector matches.
func (x *Index[I, S]) Matches(id S) iter.Seq[I] {
	return func(yield func(I) bool) {
		if e := x.selectors[id]; e != nil {
			for t := range e.matched {
				if !yield(t.id) {
					return
				}
			}
		}
	}
}

// Selectors visits the selectors that match an item.
func (x *Index[I, S]) Selectors(id I) iter.Seq[S] {
	return func(yield func(S) bool) {
		if t := x.items[id]; t != nil {
			for _, e := range t.matched {
				if !yield(e.id) {
					return
				}
			}
		}
	}
}

// Labels are the labels of an item with those that it inherits, nil for one that is not there.
func (x *Index[I, S]) Labels(id I) selector.Labels {
	if t := x.items[id]; t != nil {
		return t
	}
	return nil
}

func put[K, V comparable](m map[K]map[V]struct{}, k K, v V) {
	set := m[k]
	if set == nil {
		set = map[V]struct{}{}
		m[k] = set
	}
	set[v] = struct{}{}
}

func take[K, V comparable](m map[K]map[V]struct{}, k K, v V) {
	delete(m[k], v)
	if len(m[k]) == 0 {
		delete(m, k)
	}
}
