package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isPod keeps host endpoints out of what Kubernetes selects.
const isPod = "projectcalico.org/orchestrator == 'k8s'"

// podSelector writes a selector of pods; nil selects all of them.
func podSelector(s *metav1.LabelSelector) (string, error) {
	text, err := labelSelector(s)
	if err != nil || text == "" {
		return isPod, err
	}
	return isPod + " && " + text, nil
}

// namespaceSelector writes a selector of namespaces: nil is the policy's own, written as nothing, and empty is all.
func namespaceSelector(s *metav1.LabelSelector) (string, error) {
	if s == nil {
		return "", nil
	}
	text, err := labelSelector(s)
	if err != nil || text != "" {
		return text, err
	}
	return "all()", nil
}

// labelSelector writes the conditions of a selector, empty for none.
func labelSelector(s *metav1.LabelSelector) (string, error) {
	if s == nil {
		return "", nil
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		parts = append(parts, fmt.Sprintf("%s == '%s'", k, s.MatchLabels[k]))
	}
	for _, e := range s.MatchExpressions {
		quoted := make([]string, len(e.Values))
		for i, v := range e.Values {
			quoted[i] = "'" + v + "'"
		}
		values := "{ " + strings.Join(quoted, ", ") + " }"
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			parts = append(parts, e.Key+" in "+values)
		case metav1.LabelSelectorOpNotIn:
			parts = append(parts, e.Key+" not in "+values)
		case metav1.LabelSelectorOpExists:
			parts = append(parts, "has("+e.Key+")")
		case metav1.LabelSelectorOpDoesNotExist:
			parts = append(parts, "! has("+e.Key+")")
		default:
			return "", fmt.Errorf("operator %q of label %s: must be In, NotIn, Exists or DoesNotExist", e.Operator, e.Key)
		}
	}
	return strings.Join(parts, " && "), nil
}
