package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// Decode decodes the stored bytes of an object. It always returns an object: one that cannot be decoded, or is unsafe
// to use, has Err set.
func Decode(key model.Key, raw []byte, revision int64) *model.Object {
	o := &model.Object{Key: key, Revision: revision, Raw: raw}
	info, ok := model.Lookup(key.Kind)
	if !ok {
		o.Err = fmt.Errorf("%s: unknown kind", key)
		return o
	}
	// Neither a label of a metric nor a text of protobuf can have other bytes: they would end manxd or fail an answer.
	if !utf8.ValidString(key.Namespace) || !utf8.ValidString(key.Name) {
		o.Err = fmt.Errorf("%q: the key is not valid UTF-8", key)
		return o
	}
	value, err := decodeValue(info, key, raw)
	if err != nil {
		o.Err = fmt.Errorf("%s: %w", key, err)
		return o
	}
	o.Value = value
	if m := o.Metadata(); m != nil {
		m.SetResourceVersion(strconv.FormatInt(revision, 10))
	}
	if broken := validation.Unsafe(key, value); len(broken) > 0 {
		o.Err = &model.InvalidError{Key: key, Fields: broken}
	}
	return o
}

// decodeValue decodes a stored value. The key, not the document, determines name and namespace.
func decodeValue(info model.KindInfo, key model.Key, raw []byte) (any, error) {
	value := info.New()
	if len(bytes.TrimSpace(raw)) == 0 && key.Kind == model.KindBlockAffinity {
		raw = []byte("{}") // very old writers
	}
	if err := json.Unmarshal(raw, value); err != nil {
		return nil, err
	}
	if m, ok := value.(metav1.Object); ok {
		m.SetName(key.Name)
		m.SetNamespace(key.Namespace)
		m.SetResourceVersion("")
		m.SetSelfLink("")
	}
	normalizePolicy(key.Name, value)
	return value, nil
}

// encodeValue returns the JSON of a value as Calico stores it. It changes value.
func encodeValue(value any) ([]byte, error) {
	if m, ok := value.(metav1.Object); ok {
		m.SetResourceVersion("")
		m.SetSelfLink("")
	}
	if err := annotatePolicy(value); err != nil {
		return nil, err
	}
	b, err := json.Marshal(value)
	return WithoutEmptyEnds(b), err
}

// WithoutEmptyEnds removes empty sources and destinations of rules, as Calico does; the public API module's type of
// rules cannot. In a JSON string the quotes would be escaped, so only members match.
func WithoutEmptyEnds(compact []byte) []byte {
	for _, end := range []string{`,"source":{}`, `,"destination":{}`} {
		if bytes.Contains(compact, []byte(end)) {
			compact = bytes.ReplaceAll(compact, []byte(end), nil)
		}
	}
	return compact
}

// Encode returns the bytes to store: the value in Calico's JSON, without the revision, and with every unknown field of
// the bytes from which the object was decoded. The bytes must not be changed.
func Encode(o *model.Object) ([]byte, error) {
	if o.Value == nil {
		return nil, fmt.Errorf("%s has no value to encode", o.Key)
	}
	value := o.Value
	if o.Metadata() != nil {
		value = o.Clone().Value
	}
	known, err := encodeValue(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Key, err)
	}
	if len(o.Raw) == 0 {
		return known, nil
	}
	return keepUnknown(o.Key, known, o.Raw)
}

// keepUnknown applies the content of known to raw. The result is raw itself if nothing changed, and known itself if raw
// has no unknown field.
func keepUnknown(key model.Key, known, raw []byte) ([]byte, error) {
	info, _ := model.Lookup(key.Kind)
	understood, err := decodeValue(info, key, raw)
	if err != nil {
		return known, nil //nolint:nilerr // nothing to keep of an unreadable entry that is being replaced
	}
	again, err := encodeValue(understood)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(again, known) && len(bytes.TrimSpace(raw)) > 0 {
		return raw, nil
	}
	if sameMembers(again, raw) {
		return known, nil // no field is unknown: usual, and much less work
	}
	before, err := decodeExact(raw)
	if err != nil {
		return known, nil //nolint:nilerr // an empty entry of a very old writer
	}
	base, err := decodeExact(again)
	if err != nil {
		return nil, err
	}
	next, err := decodeExact(known)
	if err != nil {
		return nil, err
	}
	result := merge(before, base, next)
	if reflect.DeepEqual(result, next) {
		return known, nil // byte for byte as Calico writes it
	}
	return json.Marshal(result)
}

// sameMembers reports whether two JSON objects have the same members, in any order, with the same bytes as values.
func sameMembers(a, b []byte) bool {
	var in, other map[string]json.RawMessage
	if json.Unmarshal(a, &in) != nil || json.Unmarshal(b, &other) != nil || len(in) != len(other) {
		return false
	}
	for name, value := range in {
		if have, ok := other[name]; !ok || !bytes.Equal(have, value) {
			return false
		}
	}
	return true
}
