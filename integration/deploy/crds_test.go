package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/document"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
	"github.com/manxnet/manx/integration/jsonlines"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const (
	groupV1 = "crd.projectcalico.org"
	groupV3 = "projectcalico.org"

	fixtures = "../../datastore/kubernetes/form/testdata/"
)

// api is a real API server with the definitions of deploy/crds.
type api struct {
	t         *testing.T
	server    *apiserver.Server
	client    dynamic.Interface
	resources map[string]resource // by API version and kind
}

type resource struct {
	schema.GroupVersionResource
	namespaced bool
}

func startAPI(t *testing.T, groups ...string) *api {
	t.Helper()
	s := apiserver.Start(t)
	client, err := dynamic.NewForConfig(s.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	a := &api{t: t, server: s, client: client, resources: map[string]resource{}}
	for _, group := range groups {
		a.define(group)
	}
	return a
}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
	Resource: "customresourcedefinitions"}

// readDefinitions reads the CustomResourceDefinitions of a group.
func readDefinitions(t *testing.T, group string) (all []*unstructured.Unstructured) {
	t.Helper()
	files, err := filepath.Glob("../../deploy/crds/" + group + "/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no definitions of", group, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, decode(t, text))
	}
	return all
}

func decode(t *testing.T, text []byte) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &o.Object); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return o
}

// define creates the definitions of a group and waits until their objects are served.
func (a *api) define(group string) {
	a.t.Helper()
	ctx := context.Background()
	for _, d := range readDefinitions(a.t, group) {
		strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
		if _, err := a.client.Resource(definitions).Create(ctx, d, strict); err != nil {
			a.t.Fatalf("the API server refuses %s: %v", d.GetName(), err)
		}
		spec := d.Object["spec"].(map[string]any)
		names := spec["names"].(map[string]any)
		version := spec["versions"].([]any)[0].(map[string]any)["name"].(string)
		r := resource{schema.GroupVersionResource{Group: group, Version: version, Resource: names["plural"].(string)},
			spec["scope"] == "Namespaced"}
		a.resources[group+"/"+version+" "+names["kind"].(string)] = r
	}
	for _, r := range a.resources {
		a.waitServed(r)
	}
}

func (a *api) waitServed(r resource) {
	a.t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err = a.client.Resource(r.GroupVersionResource).List(context.Background(),
			metav1.ListOptions{}); err == nil {
			return
		}
	}
	a.t.Fatalf("%s is not served: %v", r.Resource, err)
}

// on returns the client of objects like o.
func (a *api) on(o *unstructured.Unstructured) dynamic.ResourceInterface {
	a.t.Helper()
	r, ok := a.resources[o.GetAPIVersion()+" "+o.GetKind()]
	if !ok {
		a.t.Fatalf("there is no definition of %s %s", o.GetAPIVersion(), o.GetKind())
	}
	if r.namespaced {
		return a.client.Resource(r.GroupVersionResource).Namespace(o.GetNamespace())
	}
	return a.client.Resource(r.GroupVersionResource)
}

// put creates or updates an object, and its status, as its writer did. Unknown fields are errors.
func (a *api) put(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	a.t.Helper()
	ctx, on := context.Background(), a.on(o)
	o = o.DeepCopy()
	for _, field := range []string{"resourceVersion", "uid", "managedFields", "creationTimestamp", "generation"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	stored, err := on.Create(ctx, o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) {
		if stored, err = on.Get(ctx, o.GetName(), metav1.GetOptions{}); err == nil {
			o.SetResourceVersion(stored.GetResourceVersion())
			stored, err = on.Update(ctx, o, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
		}
	}
	if err != nil || o.Object["status"] == nil {
		return stored, err
	}
	o.SetResourceVersion(stored.GetResourceVersion())
	return on.UpdateStatus(ctx, o, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict})
}

// keeps fails the test if the API server lost or changed a part of an object; defaults may be added.
func (a *api) keeps(o *unstructured.Unstructured) {
	a.t.Helper()
	stored, err := a.put(o)
	if err != nil {
		a.t.Errorf("%s %s is refused: %v", o.GetKind(), o.GetName(), err)
		return
	}
	for _, part := range []string{"spec", "status"} {
		if lost := missing(part, o.Object[part], stored.Object[part]); lost != "" {
			a.t.Errorf("%s %s: %s", o.GetKind(), o.GetName(), lost)
		}
	}
	for name, value := range o.GetAnnotations() {
		if stored.GetAnnotations()[name] != value {
			a.t.Errorf("%s %s lost its annotation %s", o.GetKind(), o.GetName(), name)
		}
	}
}

// missing names the first part of want that got lacks.
func missing(path string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		for name, value := range want {
			if _, has := got[name]; !ok || !has {
				return path + "." + name + " is lost"
			}
			if lost := missing(path+"."+name, value, got[name]); lost != "" {
				return lost
			}
		}
		return ""
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return path + " has another length"
		}
		for i := range want {
			if lost := missing(fmt.Sprintf("%s[%d]", path, i), want[i], got[i]); lost != "" {
				return lost
			}
		}
		return ""
	}
	if fmt.Sprint(want) != fmt.Sprint(got) {
		return fmt.Sprintf("%s is %v, stored as %v", path, want, got)
	}
	return ""
}

// object decodes with whole numbers kept whole, as the API's clients do.
func object(t *testing.T, raw json.RawMessage) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(raw); err != nil {
		t.Fatal(err)
	}
	return o
}

// namespaces creates those that the fixtures use.
func (a *api) namespaces(names ...string) {
	a.t.Helper()
	on := a.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	for _, name := range names {
		o := decode(a.t, []byte("{apiVersion: v1, kind: Namespace, metadata: {name: "+name+"}}"))
		if _, err := on.Create(context.Background(), o, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			a.t.Fatal(err)
		}
	}
}

// Our definitions accept every state that Calico's own programs gave to their objects, and keep all fields.
func TestDefinitionsKeepCalicosObjects(t *testing.T) {
	a := startAPI(t, groupV1)
	a.namespaces("shop", "default")
	n := 0
	for _, line := range jsonlines.Read[struct {
		Op     string
		Object json.RawMessage
	}](t, fixtures+"history.jsonl") {
		if line.Op != "delete" {
			a.keeps(object(t, line.Object))
			n++
		}
	}
	for _, line := range jsonlines.Read[struct {
		Path   string
		Object json.RawMessage
	}](t, fixtures+"objects.jsonl") {
		if strings.HasPrefix(line.Path, "/apis/"+groupV1+"/") {
			a.keeps(object(t, line.Object))
			n++
		}
	}
	if n < 200 {
		t.Errorf("only %d objects were tried", n)
	}
}

// Users' documents for calicoctl are accepted by the definitions of projectcalico.org/v3 in the form in which manxctl
// sends them.
func TestDefinitionsAcceptDocuments(t *testing.T) {
	a := startAPI(t, groupV3)
	a.namespaces("shop", "default")
	text, err := os.ReadFile("../../datastore/codec/testdata/input.yaml")
	if err != nil {
		t.Fatal(err)
	}
	written, err := document.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, w := range written {
		raw, err := json.Marshal(w.Value)
		if err != nil {
			t.Fatal(err)
		}
		o := object(t, raw)
		r, ok := a.resources[o.GetAPIVersion()+" "+o.GetKind()]
		if !ok {
			continue // a kind that Kubernetes itself keeps
		}
		if r.namespaced && o.GetNamespace() == "" {
			o.SetNamespace("default")
		}
		a.keeps(o)
		n++
	}
	if n < 60 {
		t.Errorf("only %d documents were tried", n)
	}
}

// Our definitions refuse the documents that Calico's definitions or calicoctl refuse, except those that the page
// docs/kubernetes.md lists. manxctl refuses these, too.
func TestDefinitionsRefuse(t *testing.T) {
	a := startAPI(t, groupV3)
	a.namespaces("shop", "default")
	t.Run("a wrong field", a.testWrongFields)
	t.Run("an unknown field", a.testUnknownFields)
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	n, left := 0, map[string]bool{}
	for _, line := range jsonlines.Read[struct {
		Doc        json.RawMessage
		Stage, Why string
	}](t, fixtures+"rejected.jsonl") {
		if line.Stage == "decode" {
			continue // no object
		}
		o := object(t, line.Doc)
		if _, ok := a.resources[o.GetAPIVersion()+" "+o.GetKind()]; !ok || !refusedByManxctl(t, line.Doc) {
			continue // of Kubernetes, or wrong beside other objects
		}
		n++
		if a.resources[o.GetAPIVersion()+" "+o.GetKind()].namespaced && o.GetNamespace() == "" {
			o.SetNamespace("default")
		}
		name := o.GetKind() + ": " + line.Why
		_, err := a.put(o)
		if err == nil {
			left[name] = true
			if err := a.on(o).Delete(context.Background(), o.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d documents were tried", n)
	}
	_, list, _ := strings.Cut(string(page), leftToManxctl)
	list, _, _ = strings.Cut(list, "```\n")
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); !left[line] {
			t.Errorf("%q is refused, or no such document was tried, against the page", line)
		}
		delete(left, line)
	}
	for name := range left {
		t.Errorf("%s: is accepted, and the page does not say so", name)
	}
}

// leftToManxctl begins the list of the page.
const leftToManxctl = "left to `manxctl`:\n\n```text\n"

func refusedByManxctl(t *testing.T, text []byte) bool {
	t.Helper()
	objects, err := document.Parse(text)
	if err != nil {
		return true
	}
	info, _ := model.Lookup(objects[0].Key.Kind)
	validation.Default(info.Kind, objects[0].Value)
	return len(validation.Validate(objects[0].Key, objects[0].Value)) > 0
}

// The table of kinds of the datastore and the definitions agree.
func TestDefinitionsOfAllKinds(t *testing.T) {
	notCustom := map[model.Kind]bool{model.KindNode: true, model.KindProfile: true, model.KindWorkloadEndpoint: true}
	for _, group := range []string{groupV1, groupV3} {
		defined := map[string]string{} // scope by plural
		for _, d := range readDefinitions(t, group) {
			plural, _, _ := unstructured.NestedString(d.Object, "spec", "names", "plural")
			defined[plural], _, _ = unstructured.NestedString(d.Object, "spec", "scope")
		}
		unknown := "ipamconfigurations" // the allocator's configuration has one name in each group
		if group == groupV3 {
			unknown = "ipamconfigs"
		}
		for _, k := range model.Kinds() {
			if notCustom[k.Kind] || k.Plural == unknown {
				continue
			}
			want := "Cluster"
			if k.Namespaced {
				want = "Namespaced"
			}
			if defined[k.Plural] != want {
				t.Errorf("%s.%s: scope %q, want %s", k.Plural, group, defined[k.Plural], want)
			}
			delete(defined, k.Plural)
		}
		for plural := range defined {
			t.Errorf("%s.%s is no kind of the datastore", plural, group)
		}
	}
}
