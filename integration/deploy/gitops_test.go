package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The fields of Argo CD and Flux that the page has, in the forms of their reference.
type (
	meta struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Annotations map[string]string `json:"annotations"`
		Finalizers  []string          `json:"finalizers"`
	}
	application struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   meta   `json:"metadata"`
		Spec       struct {
			Project string `json:"project"`
			Source  struct {
				RepoURL        string `json:"repoURL"`
				TargetRevision string `json:"targetRevision"`
				Path           string `json:"path"`
				Helm           struct {
					ReleaseName  string         `json:"releaseName"`
					ValuesObject map[string]any `json:"valuesObject"`
				} `json:"helm"`
			} `json:"source"`
			Destination struct {
				Server    string `json:"server"`
				Namespace string `json:"namespace"`
			} `json:"destination"`
			SyncPolicy struct {
				Automated struct {
					Prune    bool `json:"prune"`
					SelfHeal bool `json:"selfHeal"`
				} `json:"automated"`
				SyncOptions []string `json:"syncOptions"`
			} `json:"syncPolicy"`
		} `json:"spec"`
	}
	gitRepository struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   meta   `json:"metadata"`
		Spec       struct {
			Interval string            `json:"interval"`
			URL      string            `json:"url"`
			Ref      map[string]string `json:"ref"`
		} `json:"spec"`
	}
	helmRelease struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   meta   `json:"metadata"`
		Spec       struct {
			Interval        string `json:"interval"`
			ReleaseName     string `json:"releaseName"`
			TargetNamespace string `json:"targetNamespace"`
			DependsOn       []meta `json:"dependsOn"`
			Chart           struct {
				Spec struct {
					Chart             string `json:"chart"`
					ReconcileStrategy string `json:"reconcileStrategy"`
					SourceRef         struct {
						Kind string `json:"kind"`
						Name string `json:"name"`
					} `json:"sourceRef"`
				} `json:"spec"`
			} `json:"chart"`
			DriftDetection map[string]string `json:"driftDetection"`
			Values         map[string]any    `json:"values"`
		} `json:"spec"`
	}
)

// strictly reads a document of the page.
func strictly[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

// asFile writes values into a file.
func asFile(t *testing.T, values any) string {
	t.Helper()
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// argo renders the chart as Argo CD does: without a look at the cluster, of which it knows the kinds.
func (c *cluster) argo(values string, more ...string) string {
	c.Helper()
	args := append([]string{"template", "manx", chart, "--namespace", "kube-system", "--skip-tests",
		"-f", values}, more...)
	for version := range strings.FieldsSeq(c.must("api-versions")) {
		args = append(args, "--api-versions", version)
	}
	out, err := helm(c.T, append(args, "--api-versions", "v1/Pod")...)
	if err != nil {
		c.Fatalf("helm %v: %v: %s", args, err, out)
	}
	return out
}

// waves writes the documents of a rendered chart into files by their sync waves.
func (c *cluster) waves(rendered string) (first, second string) {
	c.Helper()
	var text [2]string
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		wave := 1
		if strings.Contains(document, `argocd.argoproj.io/sync-wave: "-1"`) {
			wave = 0
		}
		text[wave] += "\n---\n" + document
	}
	folder := c.TempDir()
	for i, name := range []string{"0.yaml", "1.yaml"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text[i]), 0o600); err != nil {
			c.Fatal(err)
		}
	}
	return filepath.Join(folder, "0.yaml"), filepath.Join(folder, "1.yaml")
}

// The Application of the page syncs in one go on a fresh cluster, and then nothing differs. Without crds.install, a
// sync leaves definitions of others as they are, which it replaces with that: Argo CD cannot look.
func TestArgoCD(t *testing.T) {
	t.Parallel()
	blocks := page(t, "gitops.md", "## Argo CD\n", "yaml")
	a := strictly[application](t, blocks[0])
	if a.Spec.Source.Path != "deploy/charts/manx" || !slices.Contains(a.Spec.SyncPolicy.SyncOptions,
		"ServerSideApply=true") || a.Kind != "Application" {
		t.Errorf("the Application is %+v", a)
	}
	c := startCluster(t)
	apply := func(file string) {
		t.Helper()
		c.must("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", file)
	}

	// A definition that Manx has not made is in force.
	c.must("create", "-f", "../../deploy/crds/projectcalico.org/tiers.yaml")
	ours := func() string { // the annotations of Manx's definitions
		return c.must("get", "crd", "tiers.projectcalico.org", "-o", "jsonpath={.metadata.annotations}")
	}
	_, beside := c.waves(c.argo(asFile(t, strictly[map[string]any](t, blocks[1]))))
	apply(beside)
	if defined := strings.Fields(c.must("get", "crd", "-o", "name")); len(defined) != 1 || ours() != "" {
		t.Errorf("a sync beside Calico touches definitions: %v, %s", defined, ours())
	}
	if unasked := c.argo(asFile(t, map[string]any{"logLevel": "debug"})); strings.Contains(unasked,
		"\nkind: CustomResourceDefinition\n") {
		t.Error("a sync without a word about definitions would replace them")
	}
	if out, err := helm(t, "template", chart, "--api-versions=v1/Pod", "--api-versions=crd.projectcalico.org/v1",
		"--set-string=crds.install=on"); err == nil ||
		!strings.Contains(out, "crds.install=on: the cluster has definitions") {
		t.Errorf("beside the older group: %v: %.300s", err, out)
	}
	c.must("delete", "crd", "tiers.projectcalico.org")

	values := asFile(t, a.Spec.Source.Helm.ValuesObject)
	rendered := c.argo(values)
	definitions, rest := c.waves(rendered)
	apply(definitions)
	c.must("wait", "--for=condition=Established", "--timeout=60s", "-f", definitions)
	apply(rest)
	if as := c.must("get", "bgppeers.projectcalico.org", "rack-a", "-o", "jsonpath={.spec.asNumber}"); as != "65001" {
		t.Errorf("the peer has the AS %q", as)
	}
	if again := c.argo(values); again != rendered {
		t.Error("rendered again, the chart differs: Argo CD would sync for ever")
	}
	state := []string{"get", "-f", definitions, "-f", rest, "-o", "jsonpath={.items[*].metadata.resourceVersion}"}
	before := c.must(state...)
	apply(definitions)
	apply(rest)
	if after := c.must(state...); after != before || len(strings.Fields(after)) < 40 {
		t.Errorf("a second sync changes objects: %s, before: %s", after, before)
	}
	if out := c.must("diff", "--server-side", "--force-conflicts", "-f", definitions, "-f", rest); out != "" {
		t.Errorf("after a sync there are differences: %s", out)
	}
	if n := strings.Count(rendered, "\nkind: CustomResourceDefinition\n"); n != 22 ||
		strings.Count(rendered, "sync-options: Prune=false,Delete=false\n") != n+1 {
		t.Errorf("of %d definitions and a peer, some can be pruned", n)
	}
}

// Argo CD cannot look for a calico-node: the pods have the guard, before anything of theirs touches the node.
func TestPodsGuardWithoutLookup(t *testing.T) {
	t.Parallel()
	out, err := helm(t, "template", "manx", chart, "--api-versions=v1/Pod")
	if err != nil {
		t.Fatal(out)
	}
	_, out, _ = strings.Cut(out, "kind: DaemonSet\n")
	steps := regexp.MustCompile(`(?m)^ +command: (.*)$`).FindAllStringSubmatch(out, 2)
	if len(steps) != 2 || steps[0][1] != "[/manx-cni, install, --wait-for-calico-node]" ||
		steps[1][1] != "[/manx-supervise, /manxd]" {
		t.Errorf("the steps of the pod are %q", steps)
	}
}

// The documents for Flux install the definitions first, and the chart takes their values.
func TestFlux(t *testing.T) {
	t.Parallel()
	documents := strings.Split(page(t, "gitops.md", "## Flux\n", "yaml")[0], "---\n")
	if len(documents) != 3 {
		t.Fatalf("%d documents", len(documents))
	}
	source := strictly[gitRepository](t, documents[0])
	var definitions, main helmRelease
	definitions, main = strictly[helmRelease](t, documents[1]), strictly[helmRelease](t, documents[2])
	for _, r := range []helmRelease{definitions, main} {
		from := r.Spec.Chart.Spec
		if from.SourceRef.Name != source.Metadata.Name || from.SourceRef.Kind != source.Kind ||
			from.Chart != "deploy/charts/manx" || r.Spec.ReleaseName != r.Metadata.Name {
			t.Errorf("the release is %+v", r)
		}
	}
	if d := main.Spec.DependsOn; len(d) != 1 || d[0].Name != definitions.Metadata.Name {
		t.Errorf("the release depends on %v", d)
	}
	c := startCluster(t)
	c.helm("install", definitions.Spec.ReleaseName, chart, "-f", asFile(t, definitions.Spec.Values), "--wait")
	c.helm("install", main.Spec.ReleaseName, chart, "-f", asFile(t, main.Spec.Values))
	c.must("get", "bgppeers.projectcalico.org", "rack-a")
}
