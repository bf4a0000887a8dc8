package selector

import (
	"iter"
	"slices"
	"strings"
)

// Both selects what a and b select. One that is nil adds nothing; the result is nil if both are.
func Both(a, b *Selector) *Selector {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return New(And{Operands: []Node{a.root, b.root}})
}

// OneOf selects what has one of the values of a label. It leaves out values with both quotes: no text can name them.
func OneOf(label string, values []string) *Selector {
	values = slices.DeleteFunc(slices.Clone(values), func(v string) bool {
		return strings.Contains(v, "'") && strings.Contains(v, `"`)
	})
	return New(In{Label: label, Values: unique(values)})
}

func unique(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}

// Prefixed is s with a prefix before the name of every label; nil if s is.
func (s *Selector) Prefixed(prefix string) *Selector {
	return s.rewrite(func(n Node) Node {
		switch n := n.(type) {
		case Has:
			return Has{prefix + n.Label}
		case Comparison:
			return Comparison{prefix + n.Label, n.Op, n.Value}
		case In:
			return In{prefix + n.Label, n.Values, n.Not}
		}
		return n
	})
}

// Replace is s with another node in place of every old one, which is All{} or Global{}; nil if s is.
func (s *Selector) Replace(old, replacement Node) *Selector {
	return s.rewrite(func(n Node) Node {
		if n == old {
			return replacement
		}
		return n
	})
}

// rewrite replaces each condition with the result of leaf.
func (s *Selector) rewrite(leaf func(Node) Node) *Selector {
	if s == nil {
		return nil
	}
	return New(rewrite(s.root, leaf))
}

func rewrite(n Node, leaf func(Node) Node) Node {
	list := func(in []Node) []Node {
		out := make([]Node, len(in))
		for i, n := range in {
			out[i] = rewrite(n, leaf)
		}
		return out
	}
	switch n := n.(type) {
	case Not:
		return negation(rewrite(n.Operand, leaf))
	case And:
		return And{Operands: list(n.Operands)}
	case Or:
		return Or{Operands: list(n.Operands)}
	}
	return leaf(n)
}

// negation is the opposite of n. That of !x is x: the canonical text of two negations would parse to it.
func negation(n Node) Node {
	if inner, ok := n.(Not); ok {
		return inner.Operand
	}
	return Not{Operand: n}
}

// Conditions visits all parts except Not, And and Or.
func (s *Selector) Conditions() iter.Seq[Node] {
	return func(yield func(Node) bool) { visit(s.root, yield) }
}

func visit(n Node, yield func(Node) bool) bool {
	parts := operands(n)
	for _, o := range parts {
		if !visit(o, yield) {
			return false
		}
	}
	return parts != nil || yield(n)
}

// operands are those of a Not, And or Or; nil for a condition.
func operands(n Node) []Node {
	switch n := n.(type) {
	case Not:
		return []Node{n.Operand}
	case And:
		return n.Operands
	case Or:
		return n.Operands
	}
	return nil
}
