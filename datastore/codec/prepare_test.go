package codec

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
	"github.com/manxnet/manx/integration/jsonlines"
)

var testTime = time.Date(2026, 8, 1, 12, 0, 0, 999, time.FixedZone("x", 7200))

// input.yaml is a user's input of calicoctl; objects.jsonl has the objects that calicoctl made of it. Objects that
// other programs wrote again later are left out.
func TestDefaultsAreThoseOfCalico(t *testing.T) {
	written := map[model.Key][]string{}
	for _, s := range jsonlines.Read[stored](t, "testdata/history.jsonl") {
		if s.Op != "delete" {
			written[storedKey(s.Key)] = append(written[storedKey(s.Key)], s.Raw)
		}
	}
	input, err := os.ReadFile("testdata/input.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := document.Parse(input)
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != 80 {
		t.Fatalf("%d objects", len(objects))
	}
	compared := 0
	for _, o := range objects {
		if info, _ := model.Lookup(o.Key.Kind); info.Namespaced && o.Key.Namespace == "" {
			o.Key.Namespace = "default" // as calicoctl does
		}
		if err := PrepareCreate(o, testTime); err != nil {
			t.Error(err)
			continue
		}
		b, err := Encode(o)
		if err != nil {
			t.Fatal(err)
		}
		if programs[o.Key.String()] {
			continue
		}
		compared++
		got, m := comparable(t, string(b))
		if m["creationTimestamp"] != "2026-08-01T10:00:00Z" || !uuidFormat.MatchString(m["uid"].(string)) {
			t.Errorf("%s: %v", o.Key, m)
		}
		if !slices.ContainsFunc(written[o.Key], func(raw string) bool {
			want, _ := comparable(t, raw)
			return reflect.DeepEqual(got, want)
		}) {
			t.Errorf("%s: made\n%s\nCalico made\n%s", o.Key, b, strings.Join(written[o.Key], "\n"))
		}
	}
	if compared < 40 {
		t.Errorf("only %d objects were compared", compared)
	}
}

var uuidFormat = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// comparable returns an object without the parts of its metadata that are never the same, and these.
func comparable(t *testing.T, raw string) (object any, identity map[string]any) {
	t.Helper()
	object = withoutNewFields(exact(t, []byte(raw)))
	m := object.(map[string]any)["metadata"].(map[string]any)
	identity = map[string]any{"uid": m["uid"], "creationTimestamp": m["creationTimestamp"]}
	delete(m, "uid")
	delete(m, "creationTimestamp")
	return object, identity
}

// programs lists objects that a program created before the user applied them.
var programs = map[string]bool{
	"BGPConfiguration default": true, "IPAMConfiguration default": true, "FelixConfiguration default": true,
}

// refusal is one line of rejected.jsonl and accepted-although-odd.jsonl.
type refusal struct {
	Doc   any
	Verb  string
	Field any // text, list of texts or nil
	Why   string
}

// document returns the text of the document.
func (r refusal) document() []byte {
	if s, ok := r.Doc.(string); ok {
		return []byte(s)
	}
	b, _ := json.Marshal(r.Doc)
	return b
}

// refuse handles a new object as a store does, and returns the fields named by the error.
func refuse(r refusal, others model.Reader) ([]string, error) {
	objects, err := document.Parse(r.document())
	if err != nil {
		return []string{err.Error()}, err
	}
	for _, o := range objects {
		err = PrepareCreate(o, testTime)
		if p, ok := o.Value.(*model.IPPool); ok && err == nil {
			if errs := validation.CheckPoolOverlap(o.Key, p, others); len(errs) > 0 {
				err = &model.InvalidError{Key: o.Key, Fields: errs}
			}
		}
		if errs := validation.CheckPolicyTier(o.Value, others); len(errs) > 0 && err == nil {
			err = &model.InvalidError{Key: o.Key, Fields: errs}
		}
	}
	var invalid *model.InvalidError
	if !errors.As(err, &invalid) {
		return nil, err
	}
	var fields []string
	for _, f := range invalid.Fields {
		fields = append(fields, f.Field)
	}
	return fields, err
}

// Input that Calico refuses and Manx accepts, with the reason.
var acceptedByUs = map[string]string{
	"AS number above 2147483647, although it fits in 32 unsigned bits": "AS numbers have 32 bits (RFC 6793)",
	"names a filter that does not exist": "needs the other objects; an unknown filter " +
		"is reported with the session",
}

func TestWhatCalicoRefusesIsRefused(t *testing.T) {
	others := model.Set{}
	for _, s := range jsonlines.Read[stored](t, "testdata/objects.jsonl") {
		k := storedKey(s.Key)
		others[k] = Decode(k, []byte(s.Raw), 1)
	}
	for _, r := range jsonlines.Read[refusal](t, "testdata/rejected.jsonl") {
		t.Run(r.Why, func(t *testing.T) {
			fields, err := refuse(r, others)
			if reason := acceptedByUs[r.Why]; reason != "" {
				if err != nil {
					t.Errorf("refused although %s: %v", reason, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("accepted: %s", r.document())
			}
			if !namesField(fields, r.Field) {
				t.Errorf("named %q, Calico names %v\n%v", fields, r.Field, err)
			}
		})
	}
}

// namesField reports whether one of fields is the one that Calico names, or a part of it. Calico spells fields in
// several ways: spec.x[0].y, Spec.X[].Y, IPPool.Spec.CIDR or only the last part. For a whole resource it names the
// kind.
func namesField(fields []string, calico any) bool {
	index := regexp.MustCompile(`\[\d*\]`)
	plain := func(s string) string { return strings.ToLower(index.ReplaceAllString(s, "")) }
	switch c := calico.(type) {
	case nil:
		return true
	case []any:
		for _, x := range c {
			if namesField(fields, x) {
				return true
			}
		}
	case string:
		c = plain(c)
		for _, i := range model.Kinds() {
			if k := strings.ToLower(string(i.Kind)); c == k || c == k+"spec" {
				c = "spec"
			}
			c = strings.TrimPrefix(c, strings.ToLower(string(i.Kind))+".")
		}
		last := c[strings.LastIndexByte(c, '.')+1:]
		for _, f := range fields {
			if f = plain(f); strings.Contains("."+f+".", "."+c+".") || strings.Contains(f, last) && c != "spec" {
				return true
			}
		}
	}
	return false
}

func TestWhatCalicoAcceptsIsAccepted(t *testing.T) {
	for _, r := range jsonlines.Read[refusal](t, "testdata/accepted-although-odd.jsonl") {
		if _, err := refuse(r, model.Set{}); err != nil {
			t.Errorf("%s: %v", r.Why, err)
		}
	}
}

func TestIdentityOfNewObjects(t *testing.T) {
	key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "shop"}
	o := model.NewObject(key, &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{
		Orchestrator: "k8s", Node: "node-1", Pod: "web-0", Endpoint: "eth0", InterfaceName: "cali1"}})
	o.Metadata().SetLabels(map[string]string{"app": "web", model.LabelNamespace: "forged"})
	if err := PrepareCreate(o, testTime); err != nil {
		t.Fatal(err)
	}
	w := o.Value.(*model.WorkloadEndpoint)
	if o.Key.Name != "node--1-k8s-web--0-eth0" || w.Name != o.Key.Name || w.Namespace != "shop" {
		t.Errorf("named %s, %s/%s", o.Key, w.Namespace, w.Name)
	}
	if w.Kind != "WorkloadEndpoint" || w.APIVersion != "projectcalico.org/v3" {
		t.Errorf("typed %s %s", w.APIVersion, w.Kind)
	}
	want := map[string]string{"app": "web", model.LabelNamespace: "shop", model.LabelOrchestrator: "k8s"}
	if !reflect.DeepEqual(w.Labels, want) {
		t.Errorf("labelled %v", w.Labels)
	}
	uid, created := w.UID, w.CreationTimestamp
	if err := PrepareCreate(o, testTime.Add(time.Hour)); err != nil || w.UID != uid ||
		!w.CreationTimestamp.Equal(&created) {
		t.Errorf("an identity that is there must stay: %v", err)
	}
	o.Key.Name = "other"
	if err := PrepareCreate(o, testTime); err == nil || !strings.Contains(err.Error(), "metadata.name") {
		t.Errorf("key and name disagree: %v", err)
	}
	block := model.NewObject(model.Key{Kind: model.KindIPAMHandle, Name: "h"},
		&model.Handle{Block: map[string]int{"10.0.0.0/26": 1}})
	if err := PrepareCreate(block, testTime); err != nil {
		t.Error(err)
	}
}
