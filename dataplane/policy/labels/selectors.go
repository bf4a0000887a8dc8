package labels

import (
	"iter"

	"github.com/manxnet/manx/datastore/selector"
)

// entry is a selector. It is filed under labels of which an item must have one to match.
type entry[I, S comparable] struct {
	id       S
	selector *selector.Selector
	keys     []key // where it is filed; see always if it is not restricted
	matched  set[class[I, S]]
	round    uint64
	// vain counts evaluations without result. Each time that it reaches patience, the selector is filed anew: a label
	// that was rare when it came may be common now.
	vain, patience uint64
}

const firstPatience = 64

// SetSelector adds or replaces the selector of an id, and calls back for the items that it matches.
func (x *Index[I, S]) SetSelector(id S, s *selector.Selector) {
	e := x.selectors[id]
	switch {
	case e == nil:
		e = &entry[I, S]{id: id}
		x.selectors[id] = e
	case e.selector.String() == s.String():
		return
	default:
		x.unfile(e)
	}
	e.selector, e.vain, e.patience = s, 0, firstPatience
	x.file(e)
	found, _ := x.search(e, func(*class[I, S]) bool { return true })
	x.match(e, found)
}

// AddSelector is SetSelector for a new id, within a limit. It stops and adds nothing, without a callback, once the
// weight of the matched items is above the limit, and then returns false.
func (x *Index[I, S]) AddSelector(id S, s *selector.Selector, limit int, weight func(I) int) bool {
	e := &entry[I, S]{id: id, selector: s, patience: firstPatience}
	x.file(e)
	found, within := x.search(e, func(c *class[I, S]) bool {
		for _, i := range c.items {
			if limit -= weight(i); limit < 0 {
				return false
			}
		}
		return true
	})
	if !within {
		x.unfile(e)
		return false
	}
	x.selectors[id] = e
	x.match(e, found)
	return true
}

// Tried counts the evaluations of a selector for a class of items so far: a measure of processor time.
func (x *Index[I, S]) Tried() uint64 { return x.tried }

// match makes these the classes that a selector matches, and calls back.
func (x *Index[I, S]) match(e *entry[I, S], found set[class[I, S]]) {
	before := e.matched
	e.matched = found
	for c := range before.all() {
		if !e.matched.has(c) {
			c.unmatch(e)
			for _, i := range c.items {
				x.stopped(e.id, i)
			}
		}
	}
	for c := range e.matched.all() {
		if !before.has(c) {
			c.matched = append(c.matched, e)
			for _, i := range c.items {
				x.started(e.id, i)
			}
		}
	}
}

// DeleteSelector removes a selector.
func (x *Index[I, S]) DeleteSelector(id S) {
	for c := range x.forget(id).all() {
		for _, i := range c.items {
			x.stopped(id, i)
		}
	}
}

// ForgetSelector removes a selector without callbacks.
func (x *Index[I, S]) ForgetSelector(id S) { x.forget(id) }

// forget removes a selector and returns the classes that it matched.
func (x *Index[I, S]) forget(id S) *set[class[I, S]] {
	e := x.selectors[id]
	if e == nil {
		return &set[class[I, S]]{}
	}
	x.unfile(e)
	delete(x.selectors, id)
	for c := range e.matched.all() {
		c.unmatch(e)
	}
	return &e.matched
}

func (c *class[I, S]) unmatch(e *entry[I, S]) {
	for i := range c.matched {
		if c.matched[i] == e {
			last := len(c.matched) - 1
			c.matched[i], c.matched[last] = c.matched[last], nil
			c.matched = c.matched[:last]
			return
		}
	}
}

// search evaluates a selector for the classes that it can match, until take returns false for one of them.
func (x *Index[I, S]) search(e *entry[I, S], take func(*class[I, S]) bool) (found set[class[I, S]], all bool) {
	x.round++
	for c := range x.candidates(e) {
		if c.round == x.round {
			continue
		}
		c.round = x.round
		x.tried++
		if e.selector.MatchesLabels(c) {
			if !take(c) {
				return found, false
			}
			found.add(c)
		}
	}
	return found, true
}

// candidates visits the classes that have one of the labels that a match needs, some more than once.
func (x *Index[I, S]) candidates(e *entry[I, S]) iter.Seq[*class[I, S]] {
	return func(yield func(*class[I, S]) bool) {
		if x.always.has(e) {
			for _, c := range x.classes {
				if !yield(c) {
					return
				}
			}
			return
		}
		for _, k := range e.keys {
			for p := range x.pairs(k) {
				for c := range p.classes.all() {
					if !yield(c) {
						return
					}
				}
				for from := range p.parents.all() {
					for c := range from.classes.all() {
						if !yield(c) {
							return
						}
					}
				}
			}
		}
	}
}

// pairs visits the pairs of a key.
func (x *Index[I, S]) pairs(k key) iter.Seq[*pair[I, S]] {
	return func(yield func(*pair[I, S]) bool) {
		n := x.names[k.label]
		switch {
		case n == nil:
		case k.any:
			for _, p := range n.values {
				if !yield(p) {
					return
				}
			}
		case n.values[k.value] != nil:
			yield(n.values[k.value])
		}
	}
}

// file puts a selector where the fewest classes find it.
func (x *Index[I, S]) file(e *entry[I, S]) {
	r := restrict(e.selector.Root(), false, x.size)
	e.keys = r.keys
	if !r.restricted {
		x.always.add(e)
	}
	for _, k := range e.keys {
		if k.any {
			x.name(k.label).selectors.add(e)
		} else {
			x.pair(k.label, k.value).selectors.add(e)
		}
	}
}

func (x *Index[I, S]) unfile(e *entry[I, S]) {
	x.always.remove(e)
	for _, k := range e.keys {
		n := x.names[k.label]
		if n == nil {
			continue // the key was there twice
		}
		if k.any {
			n.selectors.remove(e)
			x.dropName(n)
		} else if p := n.values[k.value]; p != nil {
			p.selectors.remove(e)
			x.dropPair(p)
		}
	}
	e.keys = nil
}

// size returns how many classes have a label, including those that inherit it.
func (x *Index[I, S]) size(k key) int {
	n := x.names[k.label]
	if n == nil {
		return 0
	}
	sum := 0
	if k.any {
		sum = n.classes
		if sum > 0 {
			return sum // few labels are both own and inherited: no need to check all values
		}
	}
	for p := range x.pairs(k) {
		sum += p.classes.len()
		for from := range p.parents.all() {
			sum += from.classes.len()
		}
	}
	return sum
}
