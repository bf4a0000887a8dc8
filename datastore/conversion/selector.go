package conversion

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/manxnet/manx/datastore/model"
)

// isPod excludes host endpoints from Kubernetes' selectors.
const isPod = model.LabelOrchestrator + " == 'k8s'"

// podSelector converts a selector of pods; nil selects all. The error names field or a part of it.
func podSelector(field string, s *metav1.LabelSelector) (string, error) {
	text, err := labelSelector(field, s)
	if err != nil || text == "" {
		return isPod, err
	}
	return isPod + " && " + text, nil
}

// namespaceSelector converts a selector of namespaces: nil is the policy's own namespace and yields "", an empty one is
// all namespaces.
func namespaceSelector(field string, s *metav1.LabelSelector) (string, error) {
	text, err := labelSelector(field, s)
	if err == nil && s != nil && text == "" {
		return "all()", nil
	}
	return text, err
}

// labelSelector converts the conditions of a selector, empty for none.
func labelSelector(field string, s *metav1.LabelSelector) (string, error) {
	if s == nil {
		return "", nil
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		if msgs := validation.IsQualifiedName(k); len(msgs) > 0 {
			return "", wrong(field+".matchLabels", k, "is no name of a label: %s", msgs[0])
		}
		parts = append(parts, equal(k, s.MatchLabels[k]))
	}
	for i, e := range s.MatchExpressions {
		text, err := expression(at(field+".matchExpressions", i), e)
		if err != nil {
			return "", err
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " && "), nil
}

func expression(field string, e metav1.LabelSelectorRequirement) (string, error) {
	if msgs := validation.IsQualifiedName(e.Key); len(msgs) > 0 {
		return "", wrong(field+".key", e.Key, "is no name of a label: %s", msgs[0])
	}
	switch e.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		if len(e.Values) == 0 {
			return "", wrong(field+".values", "", "must have at least one value for %s", e.Operator)
		}
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		if len(e.Values) > 0 {
			return "", wrong(field+".values", strings.Join(e.Values, ", "), "must be empty for %s", e.Operator)
		}
	}
	switch e.Operator {
	case metav1.LabelSelectorOpIn:
		return e.Key + " in " + set(e.Values), nil
	case metav1.LabelSelectorOpNotIn:
		return e.Key + " not in " + set(e.Values), nil
	case metav1.LabelSelectorOpExists:
		return "has(" + e.Key + ")", nil
	case metav1.LabelSelectorOpDoesNotExist:
		return "! has(" + e.Key + ")", nil
	}
	return "", wrong(field+".operator", e.Operator, "must be In, NotIn, Exists or DoesNotExist")
}

func equal(key, value string) string {
	if text, ok := quote(value); ok {
		return key + " == " + text
	}
	return key + " in " + set([]string{value})
}

// set formats a set of values. It omits a value that cannot be quoted, which changes nothing: no label can have it.
func set(values []string) string {
	var texts []string
	for _, v := range values {
		if text, ok := quote(v); ok {
			texts = append(texts, text)
		}
	}
	return "{ " + strings.Join(texts, ", ") + " }"
}

// quote formats a literal; the language has no escapes. With the wrong quotes a value could inject an expression.
func quote(v string) (text string, ok bool) {
	switch {
	case !strings.Contains(v, "'"):
		return "'" + v + "'", true
	case !strings.Contains(v, `"`):
		return `"` + v + `"`, true
	}
	return "", false
}
