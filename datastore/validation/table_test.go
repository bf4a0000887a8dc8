package validation

import (
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// Pods, namespaces and service accounts come from the Kubernetes API alone, which validates them.
func TestEachKindHasItsRules(t *testing.T) {
	without := map[model.Kind]bool{model.KindPod: true, model.KindNamespace: true, model.KindServiceAccount: true}
	for _, list := range [][]model.KindInfo{model.Kinds(), model.KubernetesKinds()} {
		for _, i := range list {
			if _, ok := rulesByKind[i.Kind]; ok == without[i.Kind] {
				t.Errorf("%s has rules: %t", i.Kind, ok)
			}
			key := model.Key{Kind: i.Kind, Name: "x"}
			value := i.New() // rules for another type would panic
			Default(i.Kind, value)
			Validate(key, value)
		}
	}
}
