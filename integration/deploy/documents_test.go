package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// documents returns the examples of testdata, and policies and filters with their rules combined.
func documents(t *testing.T) (list []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile("testdata/documents.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var in struct {
		Rules, Filters []map[string]any
		Services       map[string]any
		Documents      []map[string]any
	}
	if err := yaml.Unmarshal(text, &in); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy",
		"StagedGlobalNetworkPolicy"} {
		spec := map[string]any{"selector": "all()", "types": []any{"Ingress", "Egress"},
			"ingress": append(slices.Clone(in.Rules), map[string]any{"action": "Allow", "source": in.Services}),
			"egress":  append(withoutHTTP(in.Rules), map[string]any{"action": "Allow", "destination": in.Services})}
		in.Documents = append(in.Documents, map[string]any{"kind": k, "metadata": map[string]any{"name": "every-rule"},
			"spec": spec})
	}
	spec := map[string]any{}
	for _, name := range []string{"exportV4", "importV4", "exportV6", "importV6"} {
		cidr := "10.0.0.0/8"
		if strings.HasSuffix(name, "6") {
			cidr = "fd00::/8"
		}
		var list []any
		for _, f := range in.Filters {
			f = maps.Clone(f)
			f["cidr"] = cidr
			list = append(list, f)
		}
		spec[name] = list
	}
	in.Documents = append(in.Documents, map[string]any{"kind": "BGPFilter", "metadata": map[string]any{
		"name": "every-list"},
		"spec": spec})
	for _, d := range in.Documents {
		d["apiVersion"] = groupV3 + "/v3"
		raw, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, object(t, raw))
	}
	return list
}

// withoutHTTP are rules as an egress rule can have them.
func withoutHTTP(rules []map[string]any) (list []map[string]any) {
	for _, r := range rules {
		r = maps.Clone(r)
		delete(r, "http")
		list = append(list, r)
	}
	return list
}

// inNoDocument are fields that the types have and that the rules forbid.
var inNoDocument = []string{"spec.egress.http", "spec.egress.source.services", "spec.ingress.destination.services"}

// userWritten are the documents of calicoctl's users.
func userWritten(t *testing.T) (list []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile("../../datastore/codec/testdata/input.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for d := range strings.SplitSeq(string(text), "\n---\n") {
		if o := decode(t, []byte(d)); len(o.Object) > 0 {
			list = append(list, o)
		}
	}
	return list
}

// TestDefinitionsAcceptEveryField: the definitions accept documents that have, taken together, every field of every
// kind, and keep all of it; those are the fields of Calico's documentation, since the definitions are made from its
// types.
func TestDefinitionsAcceptEveryField(t *testing.T) {
	a := startAPI(t, groupV3)
	a.namespaces("shop", "default")
	seen := map[string]map[string]bool{} // paths by kind
	note := func(o *unstructured.Unstructured) {
		if seen[o.GetKind()] == nil {
			seen[o.GetKind()] = map[string]bool{}
		}
		fieldsOf(o.Object["spec"], "spec", seen[o.GetKind()])
	}
	for _, o := range documents(t) {
		if a.resources[o.GetAPIVersion()+" "+o.GetKind()].namespaced && o.GetNamespace() == "" {
			o.SetNamespace("default")
		}
		a.keeps(o)
		note(o)
	}
	for _, o := range userWritten(t) { // TestDefinitionsAcceptDocuments stores them
		note(o)
	}
	for _, d := range readDefinitions(t, groupV3) {
		kind, _, _ := unstructured.NestedString(d.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
		schema, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties",
			"spec")
		every := map[string]bool{}
		fieldsOfSchema(schema, "spec", every)
		for path := range every {
			forbidden := slices.ContainsFunc(inNoDocument, func(f string) bool {
				return path == f || strings.HasPrefix(path, f+".")
			})
			if !seen[kind][path] && !forbidden {
				t.Errorf("%s: no document has %s", kind, path)
			}
		}
	}
}

// fieldsOf adds the paths of all fields of a value; elements of lists have none of their own.
func fieldsOf(v any, path string, to map[string]bool) {
	to[path] = true
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			fieldsOf(value, path+"."+name, to)
		}
	case []any:
		for _, value := range v {
			fieldsOf(value, path, to)
		}
	}
}

// fieldsOfSchema adds the paths of all fields that a schema has.
func fieldsOfSchema(schema map[string]any, path string, to map[string]bool) {
	to[path] = true
	if items, ok := schema["items"].(map[string]any); ok {
		fieldsOfSchema(items, path, to)
	}
	properties, _ := schema["properties"].(map[string]any)
	for name, s := range properties {
		fieldsOfSchema(s.(map[string]any), path+"."+name, to)
	}
}
