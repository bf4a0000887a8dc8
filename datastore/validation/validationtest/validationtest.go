// Package validationtest has objects that keep and that break the rules of package validation, for the tests of all
// programs that accept and refuse objects.
package validationtest

import (
	"cmp"
	"fmt"

	"github.com/manxnet/manx/datastore/model"
)

// Object is an object of a kind that has custom resources, or that only manxctl writes.
type Object struct {
	Rule       string // what the object shows; each has its own
	Kind       model.Kind
	Name, Spec string // Spec is the content of a mapping in YAML
	Want       string // the field and the value of a refusal; empty for a valid object
	// Unusable marks an object that is quarantined if it is stored nevertheless; only those of Policies say it.
	Unusable bool
}

// Document returns the key and the YAML of the object; one of a kind with namespaces is in the namespace ns.
func (o Object) Document() (model.Key, string) {
	info, _ := model.Lookup(o.Kind)
	key := model.Key{Kind: o.Kind, Name: o.Name}
	if info.Namespaced {
		key.Namespace = "ns"
	}
	return key, fmt.Sprintf("{apiVersion: %s, kind: %s, metadata: {name: %s, namespace: %q}, spec: {%s}}",
		info.APIVersion, cmp.Or(info.Document, string(o.Kind)), o.Name, key.Namespace, o.Spec)
}
