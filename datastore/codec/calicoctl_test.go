package codec

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// Manx accepts calicoctl's output unchanged, and decodes it to the objects that calicoctl had read.
func TestOutputOfCalicoctlIsInput(t *testing.T) {
	raw := map[model.Key]string{}
	for _, s := range jsonlines.Read[stored](t, "testdata/objects.jsonl") {
		k := storedKey(s.Key)
		raw[k] = s.Raw
	}
	files, err := filepath.Glob("testdata/calicoctl-get/*")
	if err != nil || len(files) != 42 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		input, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := document.Parse(input)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, o := range objects {
			if o.Key.Name == model.DefaultAllowProfile {
				continue // shown, but never stored
			}
			b, err := Encode(o)
			if err != nil || o.Revision == 0 {
				t.Fatalf("%s: revision %d, %v", o.Key, o.Revision, err)
			}
			if !reflect.DeepEqual(withoutNewFields(exact(t, b)), exact(t, []byte(raw[o.Key]))) {
				t.Errorf("%s: %s\nread as\n%s\nis stored as\n%s", file, o.Key, b, raw[o.Key])
			}
			if o.Key.Kind != model.KindClusterInformation { // calicoctl may not write it
				o.Replaces(Decode(o.Key, []byte(raw[o.Key]), o.Revision))
				if err := PrepareUpdate(o); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
