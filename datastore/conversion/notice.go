package conversion

import (
	"errors"
	"fmt"
	"strings"

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

// Bounds of the notices of one object, whose author decides how much of it is wrong, and of a value in one.
const (
	mostNotices  = 8
	longestValue = 100 // bytes
)

// notices collects the notices of one object. The last one counts those beyond the bound.
type notices struct {
	key  model.Key
	list []Notice
	more int
}

func (n *notices) add(err error, effect string) {
	if len(n.list) == mostNotices {
		n.more++
		n.list[mostNotices-1] = Notice{Key: n.key, Effect: "they are left out", Problem: model.FieldError{
			Field: "metadata, spec", Value: fmt.Sprintf("%d more parts", n.more+1), Rule: "cannot be used"}}
		return
	}
	var f model.FieldError
	if !errors.As(err, &f) {
		f = model.FieldError{Field: "spec", Rule: err.Error()}
	}
	if text, ok := f.Value.(string); ok && len(text) > longestValue {
		f.Value = strings.ToValidUTF8(text[:longestValue], "") + "..."
	}
	n.list = append(n.list, Notice{Key: n.key, Problem: f, Effect: effect})
}

// wrong returns the error for a field with an unusable value.
func wrong(field string, value any, rule string, args ...any) error {
	return model.FieldError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)}
}

func at(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }
