package form

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/jsonlines"
)

// The files of testdata were written by Calico's programs and a Kubernetes API server.

// rawObject is one object as the API gives it.
type rawObject struct {
	Path   string          `json:"path"`
	Object json.RawMessage `json:"object"`
}

// head is the type of an object.
type head struct{ APIVersion, Kind string }

func (r rawObject) head(t testing.TB) (h head) {
	t.Helper()
	if err := json.Unmarshal(r.Object, &h); err != nil {
		t.Fatal(err)
	}
	return h
}

func parse[T any](t testing.TB, raw []byte) *T {
	t.Helper()
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
	return v
}

var config = Config{InterfacePrefix: "cali"}

// decodeAny decodes any object of the fixtures, nil for an irrelevant one.
func decodeAny(t testing.TB, r rawObject) (*model.Object, []conversion.Notice) {
	t.Helper()
	switch h := r.head(t); h {
	case head{"v1", "Node"}:
		return Node(parse[corev1.Node](t, r.Object), config)
	case head{"v1", "Pod"}:
		return Endpoint(parse[corev1.Pod](t, r.Object), config)
	case head{"v1", "Namespace"}:
		return Profile(Namespace(parse[corev1.Namespace](t, r.Object))), nil
	case head{"v1", "ServiceAccount"}:
		return Profile(ServiceAccount(parse[corev1.ServiceAccount](t, r.Object))), nil
	case head{"v1", "Service"}:
		return Service(parse[corev1.Service](t, r.Object)), nil
	case head{"networking.k8s.io/v1", "NetworkPolicy"}:
		return KubernetesPolicy(parse[networkingv1.NetworkPolicy](t, r.Object)), nil
	default:
		if h.APIVersion != string(V1) {
			t.Fatalf("%s: unexpected %v", r.Path, h)
		}
		o, err := Decode(V1, model.Kind(h.Kind), r.Object)
		if err != nil {
			t.Fatal(err)
		}
		return o, nil
	}
}

// shownObjects returns the objects that calicoctl showed, by kind, namespace and name.
func shownObjects(t testing.TB) map[model.Key]any {
	t.Helper()
	entries, err := os.ReadDir("testdata/calicoctl-get")
	if err != nil {
		t.Fatal(err)
	}
	all := map[model.Key]any{}
	for _, e := range entries {
		b, err := os.ReadFile("testdata/calicoctl-get/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatal(err)
		}
		for _, raw := range list.Items {
			var item struct {
				Kind     model.Kind
				Metadata metadata
			}
			if err := json.Unmarshal(raw, &item); err != nil {
				t.Fatal(err)
			}
			all[model.Key{Kind: item.Kind, Namespace: item.Metadata.Namespace, Name: item.Metadata.Name}] = tree(t, raw)
		}
	}
	return all
}

// tree is JSON without empty members.
func tree(t testing.TB, raw []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %.200s", err, raw)
	}
	return pruned(v)
}

func pruned(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			if m = pruned(m); m == nil || reflect.DeepEqual(m, map[string]any{}) || reflect.DeepEqual(m, []any{}) ||
				m == "" {
				delete(v, name)
			} else {
				v[name] = m
			}
		}
	case []any:
		for i := range v {
			v[i] = pruned(v[i])
		}
	}
	return v
}

// differences lists where two trees differ.
func differences(path string, want, have any) []string {
	w, ok1 := want.(map[string]any)
	h, ok2 := have.(map[string]any)
	if !ok1 || !ok2 {
		if reflect.DeepEqual(want, have) {
			return nil
		}
		return []string{fmt.Sprintf("%s: want %v, have %v", path, want, have)}
	}
	var list []string
	for name := range w {
		list = append(list, differences(path+"."+name, w[name], h[name])...)
	}
	for name := range h {
		if _, ok := w[name]; !ok {
			list = append(list, differences(path+"."+name, nil, h[name])...)
		}
	}
	slices.Sort(list)
	return list
}

// The objects that upstream's calicoctl shows are the decoded objects. The exceptions: annotations with the requested
// addresses of a pod are kept here, since they are read from tables; the profile projectcalico-default-allow is no
// object of the API; and calicoctl does not show IPAM's own objects, Services and Kubernetes' policies.
func TestShownByCalicoctl(t *testing.T) {
	want := shownObjects(t)
	delete(want, model.ResourceKey(model.KindProfile, "projectcalico-default-allow"))
	compared := 0
	for _, r := range jsonlines.Read[rawObject](t, "testdata/objects.jsonl") {
		o, notices := decodeAny(t, r)
		if o == nil && strings.HasSuffix(r.Path, "/host-net") {
			continue
		}
		if o == nil || o.Err != nil || len(notices) > 0 {
			t.Errorf("%s: %+v, notices %v", r.Path, o, notices)
			continue
		}
		switch o.Key.Kind {
		case model.KindIPAMBlock, model.KindBlockAffinity, model.KindIPAMHandle, model.KindService,
			model.KindKubernetesNetworkPolicy:
			continue
		case model.KindIPAMConfig: // calicoctl shows it in its own form
			var err error
			if o, err = Decode(V1, model.KindIPAMConfiguration, r.Object); err != nil {
				t.Fatal(err)
			}
		case model.KindWorkloadEndpoint:
			o.Metadata().SetAnnotations(nil)
			o.Value = o.Value.(*model.WorkloadEndpoint).Confirmed()
		}
		text, err := json.Marshal(o.Value)
		if err != nil {
			t.Fatal(err)
		}
		key := o.Key
		key.Name = o.Metadata().GetName()
		for _, d := range differences(string(key.Kind), want[key], tree(t, codec.WithoutEmptyEnds(text))) {
			t.Errorf("%s: %s", r.Path, d)
		}
		delete(want, key)
		compared++
	}
	for key := range want {
		t.Errorf("only calicoctl shows %s", key)
	}
	if compared < 80 {
		t.Errorf("only %d objects were compared", compared)
	}
}

// A read and a write of an unchanged object change only the API server's own fields.
func TestReadAndWrittenBack(t *testing.T) {
	for _, r := range jsonlines.Read[rawObject](t, "testdata/objects.jsonl") {
		h := r.head(t)
		if h.APIVersion != string(V1) {
			continue
		}
		o, err := Decode(V1, model.Kind(h.Kind), r.Object)
		if err != nil {
			t.Fatal(err)
		}
		writes := []*model.Object{o, changedAndBack(o)}
		if o.Key.Kind == model.KindCalicoNodeStatus {
			writes = writes[:1] // a status is kept even where it is empty
		}
		for _, o := range writes {
			written, err := Encode(V1, o)
			if err != nil {
				t.Errorf("%s: %v", r.Path, err)
				continue
			}
			if want, have := ownPart(t, r.Object), ownPart(t, written); want != have {
				t.Errorf("%s:\nwant %s\nhave %s", r.Path, want, have)
			}
		}
	}
}

// changedAndBack returns an equal object that does not share the stored text with the first.
func changedAndBack(o *model.Object) *model.Object {
	return &model.Object{Key: o.Key, Revision: o.Revision, Value: o.Clone().Value}
}

// ownPart is JSON with its members in order, without the members that the API server sets.
func ownPart(t testing.TB, raw []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var top map[string]any
	if err := d.Decode(&top); err != nil {
		t.Fatal(err)
	}
	meta := top["metadata"].(map[string]any)
	for _, name := range []string{"managedFields", "generation", "creationTimestamp", "uid"} {
		delete(meta, name)
	}
	text, err := json.Marshal(top)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
