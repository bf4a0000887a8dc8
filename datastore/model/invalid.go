package model

import (
	"fmt"
	"strings"
)

// FieldError is one broken rule: the field, its value and the rule.
type FieldError struct {
	Field string // as in the document, for instance "spec.peerIP"
	Value any
	Rule  string
}

func (e FieldError) Error() string {
	return fmt.Sprintf("%s = %q: %s", e.Field, fmt.Sprint(e.Value), e.Rule)
}

// InvalidError lists all rules that one object breaks.
type InvalidError struct {
	Key    Key
	Fields []FieldError
}

func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Fields))
	for i, f := range e.Fields {
		texts[i] = f.Error()
	}
	return fmt.Sprintf("%s is invalid: %s", e.Key, strings.Join(texts, "; "))
}
