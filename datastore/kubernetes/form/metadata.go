package form

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// annotationFolded is the annotation of a custom resource of group V1 with the metadata that users see, as JSON.
const annotationFolded = "projectcalico.org/metadata"

// metadata has the relevant part of an object's metadata, in Kubernetes' order. The rest belongs to the API server.
type metadata struct {
	Name                       string                  `json:"name,omitempty"`
	GenerateName               string                  `json:"generateName,omitempty"`
	Namespace                  string                  `json:"namespace,omitempty"`
	UID                        types.UID               `json:"uid,omitempty"`
	ResourceVersion            string                  `json:"resourceVersion,omitempty"`
	CreationTimestamp          *metav1.Time            `json:"creationTimestamp,omitempty"`
	DeletionTimestamp          *metav1.Time            `json:"deletionTimestamp,omitempty"`
	DeletionGracePeriodSeconds *int64                  `json:"deletionGracePeriodSeconds,omitempty"`
	Labels                     map[string]string       `json:"labels,omitempty"`
	Annotations                map[string]string       `json:"annotations,omitempty"`
	OwnerReferences            []metav1.OwnerReference `json:"ownerReferences,omitempty"`
	Finalizers                 []string                `json:"finalizers,omitempty"`
}

// UID converts the UID of an object to that of its custom resource, and back.
func UID(g Group, uid types.UID) types.UID {
	if g == V1 {
		return conversion.DerivedUID(uid)
	}
	return uid
}

// unfold returns the metadata that users see, and the rest of the custom resource's own. folded reports whether the
// custom resource has folded metadata.
func unfold(g Group, own metadata) (seen metadata, hidden *metadata, folded bool, err error) {
	if g != V1 {
		return own, nil, false, nil
	}
	text, folded := own.Annotations[annotationFolded]
	if !folded {
		seen = own
	} else if err := json.Unmarshal([]byte(text), &seen); err != nil {
		return own, nil, true, model.FieldError{
			Field: "metadata.annotations[" + annotationFolded + "]", Value: shortened(text),
			Rule: "must be metadata as JSON: " + err.Error(),
		}
	}
	hidden = &metadata{
		OwnerReferences: own.OwnerReferences, Finalizers: own.Finalizers, DeletionTimestamp: own.DeletionTimestamp,
	}
	if !folded {
		seen.OwnerReferences, seen.Finalizers = nil, nil
	}
	for i, r := range seen.OwnerReferences {
		if r.APIVersion == string(V1) || r.APIVersion == string(V3) { // V3: of releases that did not convert them
			seen.OwnerReferences[i].APIVersion, seen.OwnerReferences[i].UID = string(V3), UID(V1, r.UID)
		}
	}
	seen.Namespace, seen.UID, seen.ResourceVersion = own.Namespace, UID(V1, own.UID), ""
	if seen.CreationTimestamp.IsZero() {
		seen.CreationTimestamp = own.CreationTimestamp
	}
	if own.DeletionTimestamp != nil {
		seen.DeletionTimestamp = own.DeletionTimestamp
	}
	seen.Labels = union(own.Labels, seen.Labels)
	seen.Annotations = without(union(own.Annotations, seen.Annotations), annotationFolded)
	return seen, hidden, folded, nil
}

// Unfold makes the metadata of a custom resource of group V1 that of the object that users see: names, labels and
// annotations from the annotation that has them, and without the identity in a cluster.
func Unfold(m metav1.Object) error {
	var seen metadata
	if text, folded := m.GetAnnotations()[annotationFolded]; folded {
		if err := json.Unmarshal([]byte(text), &seen); err != nil {
			return model.FieldError{Field: fmt.Sprintf("metadata.annotations[%q]", annotationFolded),
				Value: shortened(text), Rule: "must be metadata as JSON: " + err.Error()}
		}
	}
	m.SetName(cmp.Or(seen.Name, m.GetName()))
	m.SetLabels(union(m.GetLabels(), seen.Labels))
	m.SetAnnotations(without(union(m.GetAnnotations(), seen.Annotations), annotationFolded))
	m.SetUID("")
	m.SetResourceVersion("")
	m.SetGeneration(0)
	m.SetCreationTimestamp(metav1.Time{})
	m.SetManagedFields(nil)
	m.SetOwnerReferences(nil)
	m.SetFinalizers(nil)
	return nil
}

// fold returns the metadata of the custom resource with that name, for an object with the metadata seen.
func fold(seen metadata, name string, hidden *metadata) (metadata, error) {
	own := metadata{
		Name: name, Namespace: seen.Namespace, UID: UID(V1, seen.UID),
		Labels: ours(seen.Labels), Annotations: ours(seen.Annotations),
	}
	if hidden != nil {
		own.OwnerReferences, own.Finalizers = hidden.OwnerReferences, hidden.Finalizers
		if hidden.DeletionTimestamp != nil {
			seen.DeletionTimestamp, seen.DeletionGracePeriodSeconds = nil, nil
		}
	}
	seen.Namespace, seen.UID, seen.ResourceVersion = "", "", ""
	seen.OwnerReferences = slices.Clone(seen.OwnerReferences)
	for i, r := range seen.OwnerReferences {
		if r.APIVersion == string(V3) {
			seen.OwnerReferences[i].APIVersion, seen.OwnerReferences[i].UID = string(V1), UID(V1, r.UID)
		}
	}
	text, err := json.Marshal(seen)
	if err != nil {
		return metadata{}, err
	}
	own.Annotations = union(own.Annotations, map[string]string{annotationFolded: string(text)})
	return own, nil
}

// ours returns the labels or annotations that Calico's programs read in the custom resource itself.
func ours(all map[string]string) map[string]string {
	var some map[string]string
	for k, v := range all {
		if strings.Contains(k, "projectcalico.org/") || strings.Contains(k, "operator.tigera.io/") {
			if some == nil {
				some = map[string]string{}
			}
			some[k] = v
		}
	}
	return some
}

// union returns the union of a and b; b takes priority.
func union(a, b map[string]string) map[string]string {
	if len(a) == 0 {
		return b
	}
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// without returns m without one key, nil if nothing is left.
func without(m map[string]string, key string) map[string]string {
	if _, ok := m[key]; ok {
		m = maps.Clone(m)
		delete(m, key)
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// shortened bounds how much of a value an error repeats.
func shortened(text string) string {
	const most = 64
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}
