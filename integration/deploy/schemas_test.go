package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/validation/validationtest"
)

// The schema of all kinds, and that of each, by the name by which kubeconform finds it.
const (
	allKinds = "../../deploy/schemas/all.json"
	eachKind = "../../deploy/schemas/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"
)

// refusals has kubeconform check documents, and returns what it says about each.
func refusals(t *testing.T, schema string, documents []string) []string {
	t.Helper()
	folder := t.TempDir()
	for i, text := range documents {
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%04d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("./tool", "kubeconform", "-strict", "-verbose", "-output=json", "-schema-location", schema,
		folder)
	out, err := cmd.Output()
	var result struct {
		Resources []struct{ Filename, Status, Msg string }
	}
	if jsonErr := json.Unmarshal(out, &result); jsonErr != nil || len(result.Resources) != len(documents) {
		t.Fatalf("%v, %v, %d of %d documents: %s", err, jsonErr, len(result.Resources), len(documents), out)
	}
	list := make([]string, len(documents))
	for _, r := range result.Resources {
		var i int
		if _, err := fmt.Sscanf(filepath.Base(r.Filename), "%d.yaml", &i); err != nil {
			t.Fatal(err)
		}
		if r.Status != "statusValid" {
			list[i] = r.Status + ": " + r.Msg
		}
	}
	return list
}

// ofPages are the documents for Calico's kinds in the blocks of YAML of all pages.
func ofPages(t *testing.T) (list []string) {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^ *```yaml\n(.*?)^ *```$")
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range blocks.FindAllStringSubmatch(string(text), -1) {
			for document := range strings.SplitSeq("\n"+block[1], "\n---\n") {
				if strings.Contains(document, "apiVersion: projectcalico.org/") {
					list = append(list, document)
				}
			}
		}
	}
	return list
}

func texts(t *testing.T, objects []*unstructured.Unstructured) (list []string) {
	t.Helper()
	for _, o := range objects {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, string(text))
	}
	return list
}

// The schemas accept every object of the pages, objects with every field, and what manxctl accepts.
func TestSchemasAccept(t *testing.T) {
	pages := ofPages(t)
	valid := append(slices.Clone(pages), texts(t, documents(t))...)
	for _, row := range slices.Concat(validationtest.Objects(), validationtest.Policies()) {
		if _, text := row.Document(); row.Want == "" && !slices.Contains(asNumberText, row.Rule) {
			valid = append(valid, texts(t, []*unstructured.Unstructured{asWritten(t, []byte(text))})...)
		}
	}
	own := slices.DeleteFunc(slices.Clone(valid), func(text string) bool {
		return slices.Contains([]string{"Node", "Profile", "WorkloadEndpoint"}, decode(t, []byte(text)).GetKind())
	})
	if len(pages) < 20 || len(own) < 60 {
		t.Errorf("%d documents of pages, %d in all", len(pages), len(own))
	}
	for schema, list := range map[string][]string{eachKind: own, allKinds: append(valid,
		"{apiVersion: v1, kind: Secret, metadata: {name: a}, data: {b: YQ==}}",
		"{apiVersion: projectcalico.org/v3, kind: TierList, items: [{apiVersion: projectcalico.org/v3, kind: Tier, "+
			"metadata: {name: a}, spec: {order: 5}}]}")} {
		for i, why := range refusals(t, schema, list) {
			if why != "" {
				t.Errorf("%s: %s\n%s", schema, why, list[i])
			}
		}
	}
}

// wrong are objects of which an editor can know that they are wrong, with a part of its words.
var wrong = []struct{ kind, object, why string }{
	{"BGPPeer", "metadata: {name: a}, spec: {perIP: 10.0.0.1}", "additional properties 'perIP'"},
	{"BGPPeer", "metadata: {name: a}, spec: {peerIP: 10.0.0.300}", "'10.0.0.300' does not match"},
	{"BGPPeer", "metadata: {name: a}, spec: {asNumber: 4294967296}", "'/spec/asNumber': maximum"},
	{"BGPPeer", "metadata: {name: a}, spec: {asNumber: many}", "got string, want integer"},
	{"BGPPeer", "metadata: {name: a}, spec: {nextHopMode: self}", "one of 'Auto', 'Self', 'Keep'"},
	{"BGPPeer", "metadata: {name: a}, spek: {asNumber: 1}", "additional properties 'spek'"},
	{"BGPPeer", "metadata: {name: a, labels: {a: 1}}", "'/metadata/labels/a': got number"},
	{"BGPPeer", "metadata: {}, spec: {asNumber: 1}", "missing property 'name'"},
	{"BGPPeer", "spec: {asNumber: 1}", "missing property 'metadata'"},
	{"IPPool", "metadata: {name: a}, spec: {blockSize: 26}", "missing property 'cidr'"},
	{"IPPool", "metadata: {name: a}, spec: {cidr: 10.0.0.0/33}", "'/spec/cidr'"},
	{"NetworkPolicy", "metadata: {name: a}, spec: {ingress: [{action: allow}]}",
		"'/spec/ingress/0/action'"},
	{"FelixConfiguration", "metadata: {name: a}, spec: {logSeverityScreen: DebuggX}",
		"'/spec/logSeverityScreen'"},
	{"GlobalNetworkPolicy", "metadata: {name: a}, spec: {egress: {action: Allow}}",
		"got object, want array"},
	{"BGPFilter", "metadata: {name: a}, spec: {importV4: [{action: Accept, cidr: x}]}",
		"'/spec/importV4/0/cidr'"},
}

// The schemas refuse wrong objects, and name the place.
func TestSchemasRefuse(t *testing.T) {
	var list, words []string
	for _, w := range wrong {
		list = append(list, fmt.Sprintf("{apiVersion: projectcalico.org/v3, kind: %s, %s}", w.kind, w.object))
		words = append(words, w.why)
	}
	for _, schema := range []string{eachKind, allKinds} {
		for i, why := range refusals(t, schema, list) {
			if !strings.Contains(why, words[i]) {
				t.Errorf("%s: %s: %q, want %q", schema, list[i], why, words[i])
			}
		}
	}
	list = []string{"{apiVersion: projectcalico.org/v3, kind: BGPPer, metadata: {name: a}}",
		"{apiVersion: projectcalico.org/v1, kind: BGPPeer, metadata: {name: a}}",
		"{apiVersion: projectcalico.org/v3, kind: TierList, items: [{apiVersion: projectcalico.org/v3, kind: Tier, " +
			"metadata: {name: a}, spec: {order: first}}]}"}
	for i, why := range refusals(t, allKinds, list) {
		if why == "" {
			t.Errorf("%s is accepted", list[i])
		}
	}
}

// The settings, the first line and the command of the page lead to the schemas, in a repository as the page has it.
func TestSchemasOfThePage(t *testing.T) {
	const after = "## Check objects in the editor and in CI\n"
	repository := t.TempDir()
	if err := os.CopyFS(filepath.Join(repository, "schemas"), os.DirFS("../../deploy/schemas")); err != nil {
		t.Fatal(err)
	}
	settings := strictly[struct {
		Schemas map[string][]string `json:"yaml.schemas"`
	}](t, page(t, "gitops.md", after, "json")[0])
	for schema, files := range settings.Schemas {
		if _, err := os.Stat(filepath.Join(repository, schema)); err != nil || files[0] != "calico/*.yaml" {
			t.Errorf("the settings of %v: %v", files, err)
		}
	}
	example := page(t, "gitops.md", after, "yaml")[0]
	_, schema, _ := strings.Cut(strings.SplitN(example, "\n", 2)[0], "# yaml-language-server: $schema=")
	if _, err := os.Stat(filepath.Join(repository, "calico", schema)); err != nil || schema == "" {
		t.Errorf("the first line names %q: %v", schema, err)
	}
	check := func(object string) (string, error) {
		file := filepath.Join(repository, "calico/object.yaml")
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(object), 0o600); err != nil {
			t.Fatal(err)
		}
		tool, err := filepath.Abs("tool")
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-ec", tool+" "+page(t, "gitops.md", after, "sh")[0])
		cmd.Dir = repository
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := check(example); err != nil || !strings.Contains(out, "Valid: 1, Invalid: 0, Errors: 0") {
		t.Errorf("the object of the page: %v: %s", err, out)
	}
	if out, err := check(strings.Replace(example, "cidr:", "cidrs:", 1)); err == nil ||
		!strings.Contains(out, "additional properties 'cidrs' not allowed") {
		t.Errorf("a wrong field: %v: %s", err, out)
	}
}

// sentencesOf adds the sentences of a schema by the paths of their fields.
func sentencesOf(v any, path string, to map[string]string) {
	schema, _ := v.(map[string]any)
	for name, below := range schema {
		if text, ok := below.(string); ok && name == "description" {
			to[path] = text
		}
		sentencesOf(below, path+"."+name, to)
	}
}

// The sentences of the schemas are those of the definitions.
func TestSchemasHaveTheSentences(t *testing.T) {
	n := 0
	for _, d := range readDefinitions(t, groupV3) {
		kind, _, _ := unstructured.NestedString(d.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
		of, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
		text, err := os.ReadFile("../../deploy/schemas/" + strings.ToLower(kind) + "_v3.json")
		if err != nil {
			t.Fatal(err)
		}
		want, have := map[string]string{}, map[string]string{}
		sentencesOf(of, kind, want)
		sentencesOf(decode(t, text).Object, kind, have)
		if n += len(want); !maps.Equal(want, have) {
			t.Errorf("%s: the sentences are %q, want %q", kind, have, want)
		}
	}
	if n < 500 {
		t.Errorf("only %d sentences", n)
	}
}
