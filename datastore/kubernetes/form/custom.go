package form

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// A custom resource is converted to the document that etcd would have, which package model decodes, and back. So fields
// unknown to this version survive in the object, and a write keeps them.

// members are those of a JSON object.
type members map[string]json.RawMessage

// memberHidden is the member of a document with the metadata of the custom resource only, such as finalizers. No reader
// knows it, so package model keeps it like every unknown field.
const memberHidden = "customResource"

// Decode parses a custom resource as an object of kind k. The object has Err set if it is invalid; the key of an
// invalid IPAM object without an identity has the name of the custom resource. The error is for a resource without a
// key: raw is no JSON object, or its metadata lacks a name or a usable resourceVersion.
func Decode(g Group, k model.Kind, raw []byte) (*model.Object, error) {
	info, ok := model.Lookup(k)
	if _, custom := CustomResource(g, k); !ok || !custom {
		return nil, fmt.Errorf("%s: %s has no such custom resource", k, g)
	}
	var top members
	var own metadata
	if err := json.Unmarshal(raw, &top); err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	if err := json.Unmarshal(top["metadata"], &own); err != nil {
		return nil, fmt.Errorf("%s: metadata: %w", k, err)
	}
	revision, err := revisionOf(own.ResourceVersion)
	switch {
	case own.Name == "":
		return nil, fmt.Errorf("%s: metadata.name is missing", k)
	case info.Namespaced != (own.Namespace != ""):
		return nil, fmt.Errorf("%s %s: metadata.namespace is %q", k, own.Name, own.Namespace)
	case err != nil:
		return nil, fmt.Errorf("%s %s: %w", k, own.Name, err)
	}
	if !info.Resource {
		return decodeIPAM(g, k, top["spec"], own, revision), nil
	}
	return decodeResource(g, info, top, own, revision)
}

func decodeResource(g Group, info model.KindInfo, top members, own metadata, revision int64) (*model.Object, error) {
	key := model.Key{Kind: info.Kind, Namespace: own.Namespace, Name: own.Name}
	seen, hidden, folded, problem := unfold(g, own)
	if named(info.Kind) && (!folded || seen.Name != "") {
		// Without a name beside it, package model would take a stored name for one of an old release.
		if !folded {
			seen.Name = own.Name
		}
		name, err := json.Marshal(map[string]string{"name": seen.Name})
		if err != nil {
			return nil, err
		}
		seen.Annotations = union(seen.Annotations, map[string]string{annotationFolded: string(name)})
	}
	seen.Name = own.Name
	top["kind"], top["apiVersion"] = quoted(string(info.Kind)), quoted(model.APIVersion)
	if err := top.set("metadata", seen); err != nil {
		return nil, err
	}
	if err := top.hide(hidden); err != nil {
		return nil, err
	}
	return decodeDocument(key, top, revision, problem), nil
}

// decodeDocument decodes the document that etcd would have under key. problem is an error found before.
func decodeDocument(key model.Key, doc members, revision int64, problem error) *model.Object {
	o := codec.Decode(key, doc.text(), revision)
	if problem != nil {
		o.Err = errors.Join(fmt.Errorf("%s: %w", key, problem), o.Err)
	}
	return o
}

// Encode returns the JSON of the custom resource of o, for create and update: with o.Revision as resourceVersion unless
// it is 0, and with all fields of the stored object that this version does not know.
func Encode(g Group, o *model.Object) ([]byte, error) {
	r, ok := CustomResource(g, o.Key.Kind)
	if !ok {
		return nil, fmt.Errorf("%s: %s has no such custom resource", o.Key, g)
	}
	name, err := Name(o.Key)
	if err != nil {
		return nil, err
	}
	document, err := codec.Encode(o)
	if err != nil {
		return nil, err
	}
	var top members
	if err := json.Unmarshal(document, &top); err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	hidden, err := top.reveal()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	var own metadata
	if info, _ := model.Lookup(o.Key.Kind); info.Resource {
		own, err = resourceMetadata(g, o, name, top["metadata"], hidden)
	} else {
		own, top = encodeIPAM(g, o.Key, name, top, hidden)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	switch {
	case o.Revision != 0:
		own.ResourceVersion = strconv.FormatInt(o.Revision, 10)
	case r.Status:
		delete(top, "status") // a new object has none
	}
	top["kind"], top["apiVersion"] = quoted(r.Kind), quoted(string(g))
	if err := top.set("metadata", own); err != nil {
		return nil, err
	}
	return top.text(), nil
}

// resourceMetadata returns the metadata of the custom resource of an object whose own is raw.
func resourceMetadata(g Group, o *model.Object, name string, raw json.RawMessage, hidden *metadata) (metadata, error) {
	var seen metadata
	if err := json.Unmarshal(raw, &seen); err != nil {
		return metadata{}, err
	}
	if g == V1 || named(o.Key.Kind) {
		seen.Annotations = without(seen.Annotations, annotationFolded) // etcd's annotation of a policy
	}
	if g == V1 {
		seen.Name = ""
		if named(o.Key.Kind) {
			seen.Name = o.Metadata().GetName()
		}
		return fold(seen, name, hidden)
	}
	seen.Name = name
	return seen, nil
}

// named reports whether objects of a kind may have another name than their custom resource.
func named(k model.Kind) bool { return slices.Contains(model.PolicyKinds(), k) }

// text returns the JSON of the object, its members in order. Unlike json.Marshal it does not validate the members
// again.
func (m members) text() []byte {
	size := len("{}")
	for name, value := range m {
		size += len(name) + len(value) + len(`"":,`)
	}
	text := make([]byte, 0, size)
	text = append(text, '{')
	for i, name := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			text = append(text, ',')
		}
		text = append(append(text, quoted(name)...), ':')
		text = append(text, m[name]...)
	}
	return append(text, '}')
}

// set encodes one member.
func (m members) set(name string, value any) error {
	text, err := json.Marshal(value)
	m[name] = text
	return err
}

// hide stores metadata that users do not see.
func (m members) hide(hidden *metadata) error {
	delete(m, memberHidden)
	if hidden == nil {
		return nil
	}
	text, err := json.Marshal(hidden)
	if err == nil && string(text) != "{}" {
		m[memberHidden] = text
	}
	return err
}

// reveal removes and returns the hidden metadata, nil if there is none.
func (m members) reveal() (*metadata, error) {
	text, ok := m[memberHidden]
	if !ok {
		return nil, nil
	}
	delete(m, memberHidden)
	hidden := new(metadata)
	return hidden, json.Unmarshal(text, hidden)
}

func quoted(text string) json.RawMessage {
	b, _ := json.Marshal(text) // a string can always be encoded
	return b
}

// revisionOf parses a resourceVersion. Kubernetes calls it opaque, but its API server takes it from etcd's revision,
// and itself compares it as a number.
func revisionOf(resourceVersion string) (int64, error) {
	n, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil || n <= 0 {
		return 0, model.FieldError{
			Field: "metadata.resourceVersion", Value: shortened(resourceVersion), Rule: "must be a positive number",
		}
	}
	return n, nil
}
