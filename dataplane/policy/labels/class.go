package labels

import (
	"encoding/binary"
	"slices"
	"strings"
)

// Get implements selector.Labels: own labels come first, then those of the parents in their order.
func (c *class[I, S]) Get(label string) (string, bool) {
	for _, p := range c.own {
		if p.name.label == label {
			return p.value, true
		}
	}
	for _, from := range c.parents {
		for _, p := range from.labels {
			if p.name.label == label {
				return p.value, true
			}
		}
	}
	return "", false
}

// class finds or makes the class of these labels and parents. A new one is evaluated, and has no item yet.
func (x *Index[I, S]) class(own map[string]string, parents []string) *class[I, S] {
	x.own, x.from = x.own[:0], x.from[:0]
	for label, value := range own {
		x.own = append(x.own, x.pair(label, value))
	}
	slices.SortFunc(x.own, func(a, b *pair[I, S]) int { return strings.Compare(a.name.label, b.name.label) })
	for _, name := range parents {
		x.from = append(x.from, x.parent(name))
	}
	identity := x.identify(x.own, x.from)
	if c := x.classes[string(identity)]; c != nil {
		return c
	}
	c := &class[I, S]{own: slices.Clone(x.own), parents: slices.Clone(x.from)}
	x.classes[string(identity)] = c
	for _, p := range c.own {
		p.classes.add(c)
		p.name.classes++
	}
	for _, p := range c.parents {
		p.classes.add(c)
	}
	x.evaluate(c)
	return c
}

// identify writes the numbers of the pairs and parents, which are never used twice. The result is overwritten by the
// next call.
func (x *Index[I, S]) identify(own []*pair[I, S], parents []*parent[I, S]) []byte {
	b := x.scratch[:0]
	for _, p := range own {
		b = binary.AppendUvarint(b, p.id)
	}
	b = append(b, 0) // no number
	for _, p := range parents {
		b = binary.AppendUvarint(b, p.id)
	}
	x.scratch = b
	return b
}

// dissolve removes a class without items and all of its data.
func (x *Index[I, S]) dissolve(c *class[I, S]) {
	delete(x.classes, string(x.identify(c.own, c.parents)))
	for _, e := range c.matched {
		e.matched.remove(c)
	}
	for _, p := range c.own {
		p.classes.remove(c)
		p.name.classes--
		x.dropPair(p)
	}
	for _, p := range c.parents {
		p.classes.remove(c)
		x.dropParent(p)
	}
}

// evaluate determines anew which selectors match a class, among those that can, and calls back.
func (x *Index[I, S]) evaluate(c *class[I, S]) {
	x.round++
	now := x.now[:0]
	try := func(list *set[entry[I, S]]) {
		for e := range list.all() {
			if e.round == x.round {
				continue // has been tried because of another label
			}
			e.round = x.round
			x.tried++
			if e.selector.MatchesLabels(c) {
				now = append(now, e)
			} else if e.vain++; e.vain >= e.patience {
				e.patience *= 2
				x.unfile(e)
				x.file(e)
			}
		}
	}
	labels := func(list []*pair[I, S]) {
		for _, p := range list {
			try(&p.selectors)
			try(&p.name.selectors)
		}
	}
	try(&x.always)
	labels(c.own)
	for _, p := range c.parents {
		labels(p.labels)
	}
	before := c.matched
	c.matched = append(make([]*entry[I, S], 0, len(now)), now...)
	for _, e := range before {
		e.matched.remove(c)
	}
	for _, e := range now {
		e.matched.add(c)
	}
	x.notify(before, now, c.items...)
	clear(now)
	x.now = now
}
