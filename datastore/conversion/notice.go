package conversion

import (
	"errors"
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

// Notice reports a part of an object that cannot be converted, while the rest can.
type Notice struct {
	Key     model.Key
	Problem model.FieldError
	// Effect is the consequence, for instance "the rule is left out".
	Effect string
}

func (n Notice) String() string { return fmt.Sprintf("%s: %s; %s", n.Key, n.Problem.Error(), n.Effect) }

// notices collects the notices of one object.
type notices struct {
	key  model.Key
	list []Notice
}

func (n *notices) add(err error, effect string) {
	var f model.FieldError
	if !errors.As(err, &f) {
		f = model.FieldError{Field: "spec", Rule: err.Error()}
	}
	n.list = append(n.list, Notice{Key: n.key, Problem: f, Effect: effect})
}

// wrong returns the error for a field with an unusable value.
func wrong(field string, value any, rule string, args ...any) error {
	return model.FieldError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)}
}

func at(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }
