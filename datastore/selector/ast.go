package selector

import (
	"slices"
	"strings"
)

// Labels gives a selector access to labels, for instance the union of an endpoint's own and inherited labels.
type Labels interface {
	// Get returns the value of a label and whether it exists.
	Get(name string) (string, bool)
}

// Map is a set of labels as Labels.
type Map map[string]string

// Get implements Labels.
func (m Map) Get(name string) (string, bool) {
	v, ok := m[name]
	return v, ok
}

// Node is a part of a parsed selector: one of the types in this file.
type Node interface {
	// Matches evaluates this part.
	Matches(Labels) bool
	// appendTo writes the canonical form.
	appendTo(*strings.Builder)
}

// Op is the operator of a Comparison.
type Op string

// The operators in canonical form.
const (
	Equal      Op = "=="
	NotEqual   Op = "!="
	Contains   Op = "contains"
	StartsWith Op = "starts with"
	EndsWith   Op = "ends with"
)

type (
	// All is all(): it matches everything.
	All struct{}
	// Global is global(): it matches everything too. Its effect depends on the field of the selector.
	Global struct{}
	// Has matches if the label exists.
	Has struct{ Label string }
	// Comparison compares the label's value. Without the label only NotEqual matches.
	Comparison struct {
		Label string
		Op    Op
		Value string
	}
	// In matches if the label's value is one of Values, which are sorted and unique. With Not it matches if the
	// label is absent or has another value.
	In struct {
		Label  string
		Values []string
		Not    bool
	}
	// Not matches if Operand does not.
	Not struct{ Operand Node }
	// And matches if all Operands do; there are at least two.
	And struct{ Operands []Node }
	// Or matches if one of the Operands does; there are at least two.
	Or struct{ Operands []Node }
)

// Matches implements Node.
func (All) Matches(Labels) bool { return true }

// Matches implements Node.
func (Global) Matches(Labels) bool { return true }

// Matches implements Node.
func (n Has) Matches(l Labels) bool {
	_, ok := l.Get(n.Label)
	return ok
}

// Matches implements Node.
func (n Comparison) Matches(l Labels) bool {
	v, ok := l.Get(n.Label)
	switch n.Op {
	case Equal:
		return ok && v == n.Value
	case NotEqual:
		return !ok || v != n.Value
	case Contains:
		return ok && strings.Contains(v, n.Value)
	case StartsWith:
		return ok && strings.HasPrefix(v, n.Value)
	case EndsWith:
		return ok && strings.HasSuffix(v, n.Value)
	}
	return false
}

// Matches implements Node.
func (n In) Matches(l Labels) bool {
	v, ok := l.Get(n.Label)
	if !ok {
		return n.Not
	}
	_, found := slices.BinarySearch(n.Values, v)
	return found != n.Not
}

// Matches implements Node.
func (n Not) Matches(l Labels) bool { return !n.Operand.Matches(l) }

// Matches implements Node.
func (n And) Matches(l Labels) bool {
	for _, o := range n.Operands {
		if !o.Matches(l) {
			return false
		}
	}
	return true
}

// Matches implements Node.
func (n Or) Matches(l Labels) bool {
	for _, o := range n.Operands {
		if o.Matches(l) {
			return true
		}
	}
	return false
}
