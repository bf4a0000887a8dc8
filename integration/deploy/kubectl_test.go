package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

func (a *api) kubectl(args ...string) string {
	a.t.Helper()
	cmd := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"),
		append([]string{"--kubeconfig", a.server.Kubeconfig(a.t, apiserver.Admin)}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		a.t.Errorf("kubectl %v: %v", args, err)
	}
	return string(out)
}

// kubectl shows each kind with columns, by its short names and by the category of all, and explains its fields.
func TestKubectlShows(t *testing.T) {
	a := startAPI(t, groupV3)
	text, err := os.ReadFile("testdata/columns.yaml")
	if err != nil {
		t.Fatal(err)
	}
	items, _, _ := unstructured.NestedSlice(decode(t, text).Object, "items")
	shown := map[string]bool{} // kinds
	for _, item := range items {
		o := &unstructured.Unstructured{Object: item.(map[string]any)}
		o.SetAPIVersion(groupV3 + "/v3")
		if _, err := a.put(o); err != nil {
			t.Fatal(err)
		}
		shown[o.GetKind()] = true
	}
	var short []string
	for _, d := range readDefinitions(t, groupV3) {
		kind, _, _ := unstructured.NestedString(d.Object, "spec", "names", "kind")
		if !shown[kind] {
			t.Errorf("no object of kind %s", kind)
		}
		names, _, _ := unstructured.NestedStringSlice(d.Object, "spec", "names", "shortNames")
		short = append(short, names...)
		for _, name := range names {
			// manxctl has the names, too. There cnp is ClusterNetworkPolicy, as Kubernetes' definition of that has it.
			if info, _ := model.Lookup(model.Kind(kind)); name != "cnp" && !slices.Contains(info.Aliases, name) {
				t.Errorf("manxctl has not the name %s of %s", name, kind)
			}
		}
	}
	want, err := os.ReadFile("testdata/columns.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := tables(a.kubectl("get", "calico", "-A", "-o", "wide")); got != string(want) {
		t.Errorf("kubectl get calico -A -o wide: got\n%s\nwant\n%s", got, want)
	}
	if len(short) < 20 {
		t.Errorf("only these short names: %v", short)
	}
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := "$ kubectl get bgpp\n" + tables(a.kubectl("get", "bgpp")); !strings.Contains(tables(string(page)), got) {
		t.Errorf("docs/kubernetes.md shows something else than\n%s", got)
	}
	for field, want := range map[string]string{
		"bgppeer.spec.peerIP":                       "[2001:db8::1]:179",
		"gnp.spec.ingress.source.notNets":           "none of which may match",
		"ippool.spec.vxlanMode":                     "CrossSubnet those to another subnet",
		"felixconfig.spec.bpfConntrackTimeouts":     "has no effect in Manx",
		"caliconodestatus.status.bgp.peersV6.since": "When the session entered its state.",
	} {
		out := a.kubectl("explain", "--api-version", groupV3+"/v3", field)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("kubectl explain %s: want %q in\n%s", field, want, out)
		}
	}
	a.kubectl("get", "-A", strings.Join(short, ",")) // fails for an unknown name
	got, plain := tables(a.kubectl("get", "gnp")), "NAME  TIER  ORDER  AGE\ndeny-smtp  default  12.5  AGE\n"
	if got != plain {
		t.Errorf("kubectl get gnp: got\n%s\nwant\n%s", got, plain)
	}
}

var (
	ages   = regexp.MustCompile(`(?m)\b\d+[smhdy]\w*$|\b\d+y?\d+d\b`)
	spaces = regexp.MustCompile(` {2,}`)
)

// tables returns what kubectl prints without ages and widths of columns.
func tables(out string) string {
	return spaces.ReplaceAllString(ages.ReplaceAllString(out, "AGE"), "  ")
}

// Each field of each kind in both groups has a sentence, and the page docs/objects.md has all of them.
func TestFieldsHaveSentences(t *testing.T) {
	page, err := os.ReadFile("../../docs/objects.md")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var check func(path string, s map[string]any)
	check = func(path string, s map[string]any) {
		text, _ := s["description"].(string)
		if !strings.HasSuffix(text, ".") && !strings.HasSuffix(path, "[]") {
			t.Errorf("%s has no sentence: %q", path, text)
		}
		// Each object has the fields spec and status.
		if strings.Count(path, ".") != 1 && !strings.Contains(string(page), "| "+text+" |") {
			t.Errorf("docs/objects.md lacks %s: %s", path, text)
		}
		if items, ok := s["items"].(map[string]any); ok {
			items["description"] = text
			check(path+"[]", items)
		}
		properties, _ := s["properties"].(map[string]any)
		for name, field := range properties {
			if strings.Contains(path, ".") || name != "apiVersion" && name != "kind" && name != "metadata" {
				n++
				check(path+"."+name, field.(map[string]any))
			}
		}
	}
	for _, group := range []string{groupV1, groupV3} {
		for _, d := range readDefinitions(t, group) {
			versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
			schema, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
			kind, _, _ := unstructured.NestedString(d.Object, "spec", "names", "kind")
			check(kind, schema)
		}
	}
	if n < 2000 {
		t.Errorf("only %d fields", n)
	}
}
