package form

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// step is one write of a custom resource.
type step struct {
	Rev    int64           `json:"rev"`
	Op     string          `json:"op"`
	Key    string          `json:"key"`
	Object json.RawMessage `json:"object"`
}

// decode returns the object as the API returns it: the stored form has no revision.
func (s step) decode(t testing.TB) (*model.Object, []byte) {
	t.Helper()
	var top map[string]json.RawMessage
	var meta map[string]json.RawMessage
	if err := json.Unmarshal(s.Object, &top); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(top["metadata"], &meta); err != nil {
		t.Fatal(err)
	}
	meta["resourceVersion"] = quoted(strconv.FormatInt(s.Rev, 10))
	top["metadata"], _ = json.Marshal(meta)
	raw, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Decode(V1, model.Kind(parse[head](t, raw).Kind), raw)
	if err != nil {
		t.Fatal(err)
	}
	return o, raw
}

// The objects that Calico's programs wrote can be read, and are written in the same form. An object of an IPAM kind is
// marked before its deletion; this package writes and reads the same mark.
func TestHistory(t *testing.T) {
	before := map[string]*model.Object{}
	marks := 0
	for _, s := range jsonlines.Read[step](t, "testdata/history.jsonl") {
		was := before[s.Key]
		if s.Op == "delete" {
			if ipam := strings.Contains(s.Key, "/ipam") || strings.Contains(s.Key, "/blockaff"); ipam != Deleted(was) {
				t.Errorf("%d: %s is deleted, marked %v", s.Rev, s.Key, !ipam)
			}
			delete(before, s.Key)
			continue
		}
		o, raw := s.decode(t)
		if o.Err != nil && !strings.Contains(s.Key, "/bad-") {
			t.Errorf("%d: %v", s.Rev, o.Err)
		}
		written, err := Encode(V1, o)
		if err != nil {
			t.Errorf("%d: %v", s.Rev, err)
		} else if want, have := ownPart(t, raw), ownPart(t, written); want != have {
			t.Errorf("%d:\nwant %s\nhave %s", s.Rev, want, have)
		}
		if Deleted(o) {
			marks++
			if have := ownPart(t, markDeleted(t, was, s.Rev)); have != ownPart(t, raw) {
				t.Errorf("%d: marked\nwant %s\nhave %s", s.Rev, ownPart(t, raw), have)
			}
		}
		before[s.Key] = o
	}
	if marks < 6 {
		t.Errorf("only %d marks were compared", marks)
	}
}

// markDeleted returns the custom resource of o with the mark of a deletion.
func markDeleted(t testing.TB, o *model.Object, revision int64) []byte {
	t.Helper()
	c := Mark(o)
	if h, ok := c.Value.(*model.Handle); ok {
		h.Block = nil // an empty block is deleted
	}
	c.Revision = revision
	raw, err := Encode(V1, c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
