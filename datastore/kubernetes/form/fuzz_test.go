package form

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// customKinds returns the kinds that are custom resources.
func customKinds() []model.Kind {
	var list []model.Kind
	for _, i := range model.Kinds() {
		if _, ok := CustomResource(V1, i.Kind); ok {
			list = append(list, i.Kind)
		}
	}
	return list
}

// odd are unusual texts.
var odd = []string{
	``, `null`, `[]`, `{}`, `"x"`, `{"metadata":null}`, `{"metadata":{"name":"x"}}`,
	`{"metadata":{"name":"x","resourceVersion":"1"},"spec":null}`,
	`{"metadata":{"name":"x","resourceVersion":"-1"}}`,
	`{"metadata":{"name":"x","resourceVersion":"99999999999999999999"}}`,
	`{"metadata":{"name":"x","resourceVersion":"1","labels":{"a":1}}}`, `{"metadata":[],"spec":{}}`,
	`{"metadata":{"name":"x","resourceVersion":"1","annotations":{"projectcalico.org/metadata":"{"}},"spec":{}}`,
	`{"metadata":{"name":"x","resourceVersion":"1","annotations":{"projectcalico.org/metadata":"null"}},"spec":{}}`,
	`{"metadata":{"name":"x","resourceVersion":"1","annotations":{"projectcalico.org/metadata":"[1]"}},"spec":{}}`,
	`{"metadata":{"name":"x","resourceVersion":"1","annotations":{"projectcalico.org/metadata":"{\"labels\":{\"a\":7}}"}},"spec":{}}`,
	`{"metadata":{"name":"x","resourceVersion":"1","annotations":{"projectcalico.org/metadata":"{\"name\":\"y\",\"name\":\"z\",\"uid\":\"u\"}"}},"spec":{}}`,
	`{"metadata":{"name":"x","namespace":"n","resourceVersion":"1","finalizers":["f"],"deletionTimestamp":"2026-01-01T00:00:00Z",` +
		`"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"p","uid":"u"}]},"spec":{"stranger":[{"a":1}]},"customResource":{"labels":{"a":"b"}},"status":5}`,
	`{"metadata":{"name":"x","resourceVersion":"1"},"spec":{"cidr":7}}`,
	`{"metadata":{"name":"x","resourceVersion":"1"},"spec":[]}`,
	`{"metadata":{"name":"h-10-0-0-0-26","resourceVersion":"1"},"spec":{"cidr":"10.0.0.0/26","node":"h","deleted":"perhaps"}}`,
	`{"metadata":{"name":"h-10-0-0-0-26","resourceVersion":"1"},"spec":{"cidr":"10.0.0.0/26","node":"h","deleted":"true","stranger":1}}`,
	`{"metadata":{"name":"h","resourceVersion":"1"},"spec":{"handleID":"H","block":null}}`,
	`{"metadata":{"name":"h","resourceVersion":"1"},"spec":{"handleID":"other"}}`,
}

// FuzzDecode decodes any text as an object of any kind. No text causes a panic, and a decoded object is unchanged by a
// write and a read, with and without its unknown fields.
func FuzzDecode(f *testing.F) {
	kinds := customKinds()
	add := func(k model.Kind, raw []byte) {
		f.Add(byte(slices.Index(kinds, k)), false, raw)
		if o, err := Decode(V1, k, raw); err == nil && o.Err == nil {
			if other, err := Encode(V3, o); err == nil {
				f.Add(byte(slices.Index(kinds, k)), true, other)
			}
		}
	}
	for _, r := range jsonlines.Read[rawObject](f, "testdata/objects.jsonl") {
		if h := r.head(f); h.APIVersion == string(V1) {
			add(model.Kind(h.Kind), r.Object)
		}
	}
	for i := range kinds {
		for _, text := range odd {
			f.Add(byte(i), false, []byte(text))
			f.Add(byte(i), true, []byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, kind byte, native bool, raw []byte) {
		g := V1
		if native {
			g = V3
		}
		o, err := Decode(g, kinds[int(kind)%len(kinds)], raw)
		if err != nil {
			return
		}
		if o.Key.Name == "" || o.Revision <= 0 || o.Err == nil && o.Value == nil {
			t.Fatalf("%+v\n%s", o, raw)
		}
		if o.Err == nil {
			checkRoundTrip(t, g, o)
			checkRoundTrip(t, g, changedAndBack(o))
		}
	})
}

// checkRoundTrip checks that encoding and decoding return an equal object, in either group.
func checkRoundTrip(t *testing.T, g Group, o *model.Object) {
	want, ok := content(t, o)
	if !ok {
		return
	}
	for _, g := range []Group{g, V1, V3} {
		written, err := Encode(g, o)
		if err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		again, err := Decode(g, o.Key.Kind, written)
		if err != nil {
			t.Fatalf("%s: %v", written, err)
		}
		if have, _ := content(t, again); have != want || again.Key != o.Key || again.Revision != o.Revision ||
			again.Err != nil {
			t.Fatalf("%s:\nwant %s\nhave %s\n%+v as %s", g, want, have, again, written)
		}
	}
}

// content is the content of an object, without the fields that the API server sets. It is false for an object that
// cannot be written, for example with a time beyond the year 9999.
func content(t *testing.T, o *model.Object) (string, bool) {
	c := o.Clone()
	if m := c.Metadata(); m != nil {
		m.SetDeletionTimestamp(nil)
		m.SetDeletionGracePeriodSeconds(nil)
		m.SetAnnotations(without(m.GetAnnotations(), annotationFolded)) // group V1 cannot keep that
		m.SetUID(UID(V1, UID(V1, m.GetUID())))                          // settles the letter case
	}
	text, err := json.Marshal(c.Value)
	if err != nil {
		return "", false
	}
	text, err = json.Marshal(tree(t, text))
	return string(text), err == nil
}
