package model

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// PrepareCreate prepares o for storing as a new object: it sets an identity and Calico's defaults, and then validates.
// It changes o.Value, and o.Key if a WorkloadEndpoint has no name. The error for an invalid object is an *InvalidError.
// now becomes the creation time.
func (o *Object) PrepareCreate(now time.Time) error {
	if err := o.prepare(); err != nil {
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
	return o.validate(nil)
}

// PrepareUpdate prepares o to replace a stored object: it sets Calico's defaults and then validates, also against the
// replaced object if o was decoded or Replaces was called. It changes o.Value. The error for an invalid object is an
// *InvalidError.
func (o *Object) PrepareUpdate() error {
	if err := o.prepare(); err != nil {
		return err
	}
	info, _ := Lookup(o.Key.Kind)
	if len(o.raw) == 0 {
		return o.validate(nil)
	}
	old, err := decodeValue(info, o.Key, o.raw)
	if err != nil {
		return o.validate(nil) // any valid object may replace an unreadable one
	}
	return o.validate(old)
}

// Replaces sets the object that o is to replace. Encode then keeps the fields of stored that this version does not
// know, and o gets the uid and creation time of stored unless it has its own.
func (o *Object) Replaces(stored *Object) {
	o.raw = stored.raw
	m, was := o.Metadata(), stored.Metadata()
	if m == nil || was == nil {
		return
	}
	if m.GetUID() == "" {
		m.SetUID(was.GetUID())
	}
	if created := m.GetCreationTimestamp(); created.IsZero() {
		m.SetCreationTimestamp(was.GetCreationTimestamp())
	}
}

// prepare sets the type, name and defaults of o.
func (o *Object) prepare() error {
	info, ok := Lookup(o.Key.Kind)
	if !ok {
		return fmt.Errorf("%s: unknown kind", o.Key)
	}
	if reflect.TypeOf(o.Value) != reflect.TypeOf(info.New()) {
		return fmt.Errorf("%s: the value cannot be a %T", o.Key, o.Value)
	}
	if w, ok := o.Value.(*WorkloadEndpoint); ok && o.Key.Name == "" && w.Name == "" {
		name, err := WorkloadEndpointName(w.Spec.IDs())
		if err != nil {
			return &InvalidError{Key: o.Key, Fields: []FieldError{
				{Field: "metadata.name", Value: "", Rule: "is required, and cannot be derived: " + err.Error()}}}
		}
		o.Key.Name = name
	}
	if m := o.Metadata(); m != nil {
		if err := o.settleName(m); err != nil {
			return err
		}
		o.Value.(interface{ GetObjectKind() schema.ObjectKind }).GetObjectKind().
			SetGroupVersionKind(schema.FromAPIVersionAndKind(info.APIVersion, info.documentKind()))
	}
	info.Default(o.Value)
	return nil
}

// settleName makes key and metadata agree; either may be missing. A policy that is stored under its old name stays
// there.
func (o *Object) settleName(m metav1.Object) error {
	if o.Key.Name == "" {
		o.Key.Name = m.GetName()
	}
	if o.Key.Namespace == "" {
		o.Key.Namespace = m.GetNamespace()
	}
	var errs []FieldError
	isOld := tiered(o.Key.Kind) && m.GetName() != "" && o.Key.Name == oldPrefix+m.GetName()
	if n := m.GetName(); n != "" && n != o.Key.Name && !isOld {
		errs = append(errs, FieldError{Field: "metadata.name", Value: n, Rule: "must be " + o.Key.Name})
	}
	if n := m.GetNamespace(); n != "" && n != o.Key.Namespace {
		errs = append(errs, FieldError{Field: "metadata.namespace", Value: n, Rule: "must be " + o.Key.Namespace})
	}
	if len(errs) > 0 {
		return &InvalidError{Key: o.Key, Fields: errs}
	}
	if !isOld {
		m.SetName(o.Key.Name)
	}
	m.SetNamespace(o.Key.Namespace)
	return nil
}

// validate applies all rules, and those for changes if old is not nil. It ignores errors that old already had if they
// did not make it unusable: another writer may be of a newer version.
func (o *Object) validate(old any) error {
	info, _ := Lookup(o.Key.Kind)
	errs := info.Validate(o.Key, o.Value)
	if len(errs) > 0 && old != nil {
		before := info.Validate(o.Key, old)
		broken := info.run(o.Key, o.Value, true)
		errs = slices.DeleteFunc(errs, func(e FieldError) bool { return listed(before, e) && !listed(broken, e) })
	}
	if was, ok := old.(*IPPool); ok {
		errs = append(errs, checkPoolChange(was, o.Value.(*IPPool))...)
	}
	if len(errs) > 0 {
		return &InvalidError{Key: o.Key, Fields: errs}
	}
	return nil
}

func listed(errs []FieldError, e FieldError) bool {
	return slices.ContainsFunc(errs, func(x FieldError) bool { return x.Error() == e.Error() })
}
