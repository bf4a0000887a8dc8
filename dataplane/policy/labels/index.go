package labels

import (
	"iter"
)

// Index keeps current which items each selector matches. Not safe for concurrent use; the callbacks must not call it.
//
// Items whose labels and parents are the same make up a class, as the replicas of a Deployment do: storage and
// evaluation are once for a class.
type Index[I, S comparable] struct {
	started, stopped func(S, I)

	items     map[I]place[I, S]
	classes   map[string]*class[I, S] // by the identity of their labels, see identify
	parents   map[string]*parent[I, S]
	names     map[string]*name[I, S]
	selectors map[S]*entry[I, S]
	always    set[entry[I, S]] // selectors that can match whatever the labels are

	lastID  uint64        // of pairs and parents
	round   uint64        // of the newest marks on classes and entries
	tried   uint64        // evaluations of a selector for a class so far
	own     []*pair[I, S] // reused buffers, like the rest
	from    []*parent[I, S]
	now     []*entry[I, S]
	scratch []byte
}

// place is the location of an item: class.items[at].
type place[I, S comparable] struct {
	class *class[I, S]
	at    int
}

// class is all items with the same own labels and the same parents.
type class[I, S comparable] struct {
	own     []*pair[I, S] // in the order of names
	parents []*parent[I, S]
	items   []I
	matched []*entry[I, S]
	round   uint64
}

// New makes an empty index. started and stopped are called when a selector begins and ceases to match an item; for one
// change, stopped first.
func New[I, S comparable](started, stopped func(S, I)) *Index[I, S] {
	return &Index[I, S]{
		started: started, stopped: stopped,
		items: map[I]place[I, S]{}, classes: map[string]*class[I, S]{}, parents: map[string]*parent[I, S]{},
		names: map[string]*name[I, S]{}, selectors: map[S]*entry[I, S]{},
	}
}

// SetItem enters an item with its own labels and the names of the parents (profiles) whose labels it inherits: own
// labels come first, then those of the parents in their order.
func (x *Index[I, S]) SetItem(id I, own map[string]string, parents []string) {
	now := x.class(own, parents)
	was := x.items[id]
	if was.class == now {
		return
	}
	var before []*entry[I, S]
	if was.class != nil {
		before = was.class.matched
		x.leave(was)
	}
	now.items = append(now.items, id)
	x.items[id] = place[I, S]{now, len(now.items) - 1}
	x.notify(before, now.matched, id)
}

// DeleteItem removes an item.
func (x *Index[I, S]) DeleteItem(id I) {
	was, ok := x.items[id]
	if !ok {
		return
	}
	matched := was.class.matched
	x.leave(was)
	delete(x.items, id)
	x.notify(matched, nil, id)
}

// leave takes an item out of its class, and the class out of the index if it was the last one.
func (x *Index[I, S]) leave(p place[I, S]) {
	c := p.class
	last := len(c.items) - 1
	if p.at != last {
		moved := c.items[last]
		c.items[p.at] = moved
		x.items[moved] = p
	}
	var none I
	c.items[last] = none
	c.items = c.items[:last]
	if last == 0 {
		x.dissolve(c)
	}
}

// notify calls back for the differences between the old and new matches.
func (x *Index[I, S]) notify(before, now []*entry[I, S], items ...I) {
	x.mark(now)
	for _, e := range before {
		if e.round != x.round {
			for _, id := range items {
				x.stopped(e.id, id)
			}
		}
	}
	x.mark(before)
	for _, e := range now {
		if e.round != x.round {
			for _, id := range items {
				x.started(e.id, id)
			}
		}
	}
}

func (x *Index[I, S]) mark(list []*entry[I, S]) {
	x.round++
	for _, e := range list {
		e.round = x.round
	}
}

// Matches visits the items that a selector matches.
func (x *Index[I, S]) Matches(id S) iter.Seq[I] {
	return func(yield func(I) bool) {
		e := x.selectors[id]
		if e == nil {
			return
		}
		for c := range e.matched.all() {
			for _, i := range c.items {
				if !yield(i) {
					return
				}
			}
		}
	}
}

// Selectors visits the selectors that match an item.
func (x *Index[I, S]) Selectors(id I) iter.Seq[S] {
	return func(yield func(S) bool) {
		if p, ok := x.items[id]; ok {
			for _, e := range p.class.matched {
				if !yield(e.id) {
					return
				}
			}
		}
	}
}
