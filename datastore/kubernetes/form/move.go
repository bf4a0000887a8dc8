package form

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/model"
)

// Moved is a custom resource of group V1 in the form of V3.
type Moved struct {
	// Name is its name in V3. Stored is that in V1, which is another one for policies of before Calico 3.32.
	Name, Stored, Namespace string
	// UID is the one that users see of the old object, and that owner references name.
	UID types.UID
	// Resource is the new custom resource, without a status and without what the server sets. It is nil for an object
	// that counts as deleted.
	Resource []byte
}

// Move converts a custom resource of group V1 to a new one of V3. The error is for one that cannot be read.
func Move(k model.Kind, raw []byte) (Moved, error) {
	o, err := Decode(V1, k, raw)
	if err != nil {
		return Moved{}, err
	}
	if o.Value == nil {
		return Moved{}, o.Err
	}
	var top struct{ Metadata metadata }
	if err := json.Unmarshal(raw, &top); err != nil {
		return Moved{}, fmt.Errorf("%s: %w", o.Key, err)
	}
	old := top.Metadata
	moved := Moved{Stored: old.Name, Namespace: old.Namespace, UID: UID(V1, old.UID)}
	if o = o.Clone(); o.Metadata() != nil {
		o.Key.Name = o.Metadata().GetName()
		forget(o.Metadata())
	}
	if moved.Name, err = Name(o.Key); err != nil || Deleted(o) {
		return moved, err
	}
	o.Err, o.Revision = nil, 0
	text, err := Encode(V3, o)
	if err != nil {
		return Moved{}, err
	}
	moved.Resource, err = withoutFolded(text)
	return moved, err
}

// forget removes what an API server sets.
func forget(m metav1.Object) {
	m.SetUID("")
	m.SetGeneration(0)
	m.SetCreationTimestamp(metav1.Time{})
	m.SetDeletionTimestamp(nil)
	m.SetDeletionGracePeriodSeconds(nil)
	m.SetManagedFields(nil)
}

// withoutFolded removes the annotation that only V1 has, and the status.
func withoutFolded(text []byte) ([]byte, error) {
	var top members
	var own metadata
	if err := json.Unmarshal(text, &top); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(top["metadata"], &own); err != nil {
		return nil, err
	}
	own.Annotations = without(own.Annotations, annotationFolded)
	delete(top, "status")
	if err := top.set("metadata", own); err != nil {
		return nil, err
	}
	return top.text(), nil
}
