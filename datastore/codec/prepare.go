package codec

import (
	"cmp"
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// PrepareCreate prepares o for storing as a new object: it sets an identity and Calico's defaults, and then validates.
// It changes o.Value, and o.Key if a WorkloadEndpoint has no name. The error for an invalid object is an *InvalidError.
// now becomes the creation time.
func PrepareCreate(o *model.Object, now time.Time) error {
	if err := prepare(o); err != nil {
		return err
	}
	if m := o.Metadata(); m != nil {
		if m.GetUID() == "" {
			m.SetUID(uuid.NewUUID())
		}
		if created := m.GetCreationTimestamp(); created.IsZero() {
			m.SetCreationTimestamp(metav1.NewTime(now.UTC().Truncate(time.Second)))
		}
	}
	return validateUpdate(o, nil)
}

// PrepareUpdate prepares o to replace a stored object: it sets Calico's defaults and then validates, also against the
// replaced object if o was decoded or Replaces was called. It changes o.Value. The error for an invalid object is an
// *InvalidError.
func PrepareUpdate(o *model.Object) error {
	if err := prepare(o); err != nil {
		return err
	}
	info, _ := model.Lookup(o.Key.Kind)
	if len(o.Raw) == 0 {
		return validateUpdate(o, nil)
	}
	old, err := decodeValue(info, o.Key, o.Raw)
	if err != nil {
		return validateUpdate(o, nil) // any valid object may replace an unreadable one
	}
	return validateUpdate(o, old)
}

// prepare sets the type, name and defaults of o.
func prepare(o *model.Object) error {
	info, ok := model.Lookup(o.Key.Kind)
	if !ok {
		return fmt.Errorf("%s: unknown kind", o.Key)
	}
	if reflect.TypeOf(o.Value) != reflect.TypeOf(info.New()) {
		return fmt.Errorf("%s: the value cannot be a %T", o.Key, o.Value)
	}
	if w, ok := o.Value.(*model.WorkloadEndpoint); ok && o.Key.Name == "" && w.Name == "" {
		name, err := model.WorkloadEndpointName(w.Spec.IDs())
		if err != nil {
			return &model.InvalidError{Key: o.Key, Fields: []model.FieldError{
				{Field: "metadata.name", Value: "", Rule: "is required, and cannot be derived: " + err.Error()}}}
		}
		o.Key.Name = name
	}
	if m := o.Metadata(); m != nil {
		if err := normalizeName(o, m); err != nil {
			return err
		}
		o.Value.(interface{ GetObjectKind() schema.ObjectKind }).GetObjectKind().
			SetGroupVersionKind(schema.FromAPIVersionAndKind(info.APIVersion, cmp.Or(info.Document, string(info.Kind))))
	}
	validation.Default(o.Key.Kind, o.Value)
	return nil
}

// normalizeName makes key and metadata agree; either may be missing. A policy that is stored under its old name stays
// there.
func normalizeName(o *model.Object, m metav1.Object) error {
	if o.Key.Name == "" {
		o.Key.Name = m.GetName()
	}
	if o.Key.Namespace == "" {
		o.Key.Namespace = m.GetNamespace()
	}
	var errs []model.FieldError
	old, ok := model.OldPolicyKey(model.Key{Kind: o.Key.Kind, Namespace: o.Key.Namespace, Name: m.GetName()})
	isOld := ok && m.GetName() != "" && o.Key == old
	if n := m.GetName(); n != "" && n != o.Key.Name && !isOld {
		errs = append(errs, model.FieldError{Field: "metadata.name", Value: n, Rule: "must be " + o.Key.Name})
	}
	if n := m.GetNamespace(); n != "" && n != o.Key.Namespace {
		errs = append(errs, model.FieldError{Field: "metadata.namespace", Value: n, Rule: "must be " + o.Key.Namespace})
	}
	if len(errs) > 0 {
		return &model.InvalidError{Key: o.Key, Fields: errs}
	}
	if !isOld {
		m.SetName(o.Key.Name)
	}
	m.SetNamespace(o.Key.Namespace)
	return nil
}

func validateUpdate(o *model.Object, old any) error {
	if errs := validation.ValidateUpdate(o.Key, old, o.Value); len(errs) > 0 {
		return &model.InvalidError{Key: o.Key, Fields: errs}
	}
	return nil
}
