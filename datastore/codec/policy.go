package codec

import (
	"encoding/json"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// policyName returns the v3 name of a policy of a tier from its stored name. Releases before Calico 3.32 prefixed the
// names of the default tier's policies with "default."; later ones store every name unchanged and repeat it in an
// annotation, here annotated ("" for none). An annotation that matches neither form is ignored.
func policyName(stored, annotated, tier string) string {
	plain, old := strings.CutPrefix(stored, model.DefaultTier+".")
	switch {
	case annotated == stored || plain == "":
		return stored
	case old && annotated == plain:
		return plain
	case old && annotated == "" && (tier == "" || tier == model.DefaultTier):
		return plain
	}
	return stored
}

// normalizePolicy sets the name of a stored policy to the v3 name, and the fields that old writers left out.
func normalizePolicy(stored string, value any) {
	if tier := model.PolicyTier(value); tier != "" {
		m := value.(metav1.Object)
		annotations := m.GetAnnotations()
		m.SetName(policyName(stored, annotatedName(annotations), tier))
		delete(annotations, model.AnnotationMetadata)
		if len(annotations) == 0 {
			m.SetAnnotations(nil)
		}
	}
	validation.CompletePolicy(value)
}

func annotatedName(annotations map[string]string) string {
	var metadata struct{ Name string }
	if json.Unmarshal([]byte(annotations[model.AnnotationMetadata]), &metadata) != nil {
		return ""
	}
	return metadata.Name
}

// annotatePolicy stores the name of a policy in Calico's annotation. It changes value.
func annotatePolicy(value any) error {
	if model.PolicyTier(value) == "" {
		return nil
	}
	m := value.(metav1.Object)
	metadata, err := json.Marshal(map[string]string{"name": m.GetName()})
	if err != nil {
		return err
	}
	annotations := maps.Clone(m.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[model.AnnotationMetadata] = string(metadata)
	m.SetAnnotations(annotations)
	return nil
}
