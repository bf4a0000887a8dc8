package main

import (
	"bytes"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

var zeroTime metav1.Time

// onTopOf returns the object that is to replace stored: the content of o, with the fields of stored that users do not
// write: identity, status, annotations of Calico's controllers, unknown fields, and those that keep copies.
func onTopOf(stored, o *model.Object, keep func(next, stored any)) *model.Object {
	next := stored.Clone() // carries the unknown fields
	next.Err = nil
	next.Value = o.Clone().Value
	if was := stored.Metadata(); was != nil {
		m := next.Metadata()
		m.SetUID(was.GetUID())
		m.SetCreationTimestamp(was.GetCreationTimestamp())
		m.SetAnnotations(keepOwn(m.GetAnnotations(), was.GetAnnotations()))
		if m.GetFinalizers() == nil {
			m.SetFinalizers(was.GetFinalizers())
		}
		if m.GetOwnerReferences() == nil {
			m.SetOwnerReferences(was.GetOwnerReferences())
		}
		keepStatus(next.Value, stored.Value)
		keep(next.Value, stored.Value)
	}
	return next
}

// keepFilled keeps what a Node's host and Calico's controllers fill in. A file of a user without an address would take
// the node its BGP until the host registers again, and would never be what is stored.
func keepFilled(next, stored any) {
	to, ok := next.(*model.Node)
	from, there := stored.(*model.Node)
	if ok && there {
		to.KeepFilled(from)
	}
}

// keepNothing is for a replacement: a field that its file lacks is removed.
func keepNothing(_, _ any) {}

// keepOwn keeps the annotations of Calico's own programs that a user's file does not contain.
func keepOwn(annotations, was map[string]string) map[string]string {
	for k, v := range was {
		if _, ok := annotations[k]; !ok && strings.HasPrefix(k, "projectcalico.org/") {
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[k] = v
		}
	}
	return annotations
}

// keepStatus keeps the stored status if the new value has none: users do not write it.
func keepStatus(value, was any) {
	to, from := reflect.ValueOf(value).Elem(), reflect.ValueOf(was).Elem()
	if to.Type() != from.Type() || to.Kind() != reflect.Struct {
		return
	}
	if s := to.FieldByName("Status"); s.IsValid() && s.IsZero() {
		s.Set(from.FieldByName("Status"))
	}
}

// same reports whether the stored forms of two objects are equal.
func same(a, b *model.Object) bool {
	if a.Err != nil {
		return false
	}
	x, err1 := codec.Encode(a)
	y, err2 := codec.Encode(b)
	return err1 == nil && err2 == nil && bytes.Equal(x, y)
}
