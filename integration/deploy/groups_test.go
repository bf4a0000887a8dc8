package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// cluster is an API server with the users' programs.
type cluster struct {
	*testing.T
	server *apiserver.Server
	config string
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	s := apiserver.Start(t)
	return &cluster{t, s, s.Kubeconfig(t, apiserver.Admin)}
}

// kubectl returns the output of kubectl, and whether it succeeded.
func (c *cluster) kubectl(args ...string) (string, bool) {
	c.Helper()
	cmd := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), append(args, "--kubeconfig", c.config)...)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// must is kubectl that has to succeed.
func (c *cluster) must(args ...string) string {
	c.Helper()
	out, ok := c.kubectl(args...)
	if !ok {
		c.Fatalf("kubectl %v: %s", args, out)
	}
	return out
}

// helm runs a command of helm about the release manx, which must succeed.
func (c *cluster) helm(args ...string) {
	c.Helper()
	if out, err := c.try(args...); err != nil {
		c.Fatalf("helm %v: %v: %s", args, err, out)
	}
}

func (c *cluster) try(args ...string) (string, error) {
	c.Helper()
	return helm(c.T, append(args, "--namespace", "kube-system", "--kubeconfig", c.config)...)
}

// defined returns the groups of Calico of which the cluster has definitions.
func (c *cluster) defined() (groups []string) {
	c.Helper()
	for name := range strings.FieldsSeq(c.must("get", "crd", "-o", "name")) {
		_, name, _ = strings.Cut(name, "/")
		if _, group, _ := strings.Cut(name, "."); !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	return groups
}

// has fails the test unless the cluster has definitions of one group, and the roles rights in no other.
func (c *cluster) has(when, group string) {
	c.Helper()
	if got := c.defined(); !slices.Equal(got, []string{group}) {
		c.Errorf("%s: the cluster has definitions of %q, want %s alone", when, got, group)
	}
	for _, g := range []string{groupV1, groupV3} {
		for _, account := range []string{"manx-node", "manx-cni-plugin", "manx-controllers"} {
			out, can := c.kubectl("auth", "can-i", "list", "ippools."+g,
				"--as=system:serviceaccount:kube-system:"+account)
			if can != (g == group) {
				c.Errorf("%s: may %s list the pools of %s? %s", when, account, g, out)
			}
		}
	}
	env := c.must("-n", "kube-system", "get", "daemonset/manx-node", "-o",
		`jsonpath={.spec.template.spec.containers[0].env[?(@.name=="CALICO_API_GROUP")].value}`)
	if !strings.HasPrefix(env, group+"/") {
		c.Errorf("%s: manxd gets the group %q, want %s", when, env, group)
	}
}

// written returns the documents of the page, as users copy them.
func (c *cluster) written() string {
	c.Helper()
	page, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		c.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "### Peers, pools and policies\n")
	_, text, also := strings.Cut(text, "```yaml\n")
	text, _, closed := strings.Cut(text, "```\n")
	if !ok || !also || !closed {
		c.Fatal("the page has no documents")
	}
	return text
}

// read fails the test unless a program that detects the group reads the documents.
func (c *cluster) read() {
	c.Helper()
	s, err := kubernetes.OpenREST(c.Context(), kubernetes.Config{}, c.server.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		c.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // everything is read
	for _, key := range []model.Key{
		model.ResourceKey(model.KindBGPPeer, "rack-a"), model.ResourceKey(model.KindIPPool, "pods-b"),
		{Kind: model.KindNetworkPolicy, Namespace: "default", Name: "web"},
	} {
		if o, err := s.Get(c.Context(), key); err != nil || o.Err != nil {
			c.Errorf("%v: %v, %v", key, o, err)
		}
	}
}

// apply applies the documents. The definitions are served soon after their creation.
func (c *cluster) apply() {
	c.Helper()
	file := filepath.Join(c.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, []byte(c.written()), 0o600); err != nil {
		c.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		out, ok := c.kubectl("apply", "-f", file)
		if ok {
			return
		}
		if time.Now().After(end) {
			c.Fatalf("kubectl apply: %s", out)
		}
	}
}

// A fresh cluster gets projectcalico.org/v3, so that documents are applied as they are written, those of the quickstart
// first; upgrades and uninstalling keep the group and the objects.
func TestFreshCluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.runQuickstart()
	c.has("installed", groupV3)
	c.apply()
	c.read()
	for _, plural := range []string{"bgppeers", "networkpolicies"} {
		if out, can := c.kubectl("auth", "can-i", "create", plural+".projectcalico.org",
			"--as=system:serviceaccount:kube-system:manx-node"); can {
			t.Errorf("manxctl in the pod of a node can apply %s, against the page: %s", plural, out)
		}
	}
	// A definition changes with the release that made it.
	c.must("patch", "crd", "tiers.projectcalico.org", "--type=json", "-p",
		`[{"op":"remove","path":"/spec/versions/0/subresources"}]`)
	c.helm("upgrade", "manx", chart, "--set", "logLevel=debug")
	c.has("upgraded", groupV3)
	if out := c.must("get", "crd", "tiers.projectcalico.org", "-o",
		"jsonpath={.spec.versions[0].subresources}"); out == "" {
		t.Error("an upgrade does not bring the definitions of its release")
	}
	c.helm("upgrade", "manx", chart, "--set-string", "crds.install=off")
	c.helm("uninstall", "manx")
	c.read()
	c.helm("install", "manx", chart)
	c.has("installed again", groupV3)
	c.helm("uninstall", "manx")
	c.helm("install", "other", chart)
	c.has("installed by another name", groupV3)
	c.read()
}

// A cluster with crd.projectcalico.org keeps it: existing definitions are never replaced, and missing ones are added.
// So does an installation of an earlier Manx, whose definitions belong to no release.
func TestExistingGroupStays(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.must("create", "-f", "../../deploy/crds/crd.projectcalico.org")
	c.must("delete", "crd", "tiers.crd.projectcalico.org")
	c.must("label", "crd", "ippools.crd.projectcalico.org", "of=calico")
	version := func() string {
		return c.must("get", "crd", "ippools.crd.projectcalico.org", "-o",
			"jsonpath={.metadata.generation} {.metadata.labels}")
	}
	before := version()
	check := func(when string) {
		t.Helper()
		c.has(when, groupV1)
		if now := version(); now != before {
			t.Errorf("%s: the definition was changed: %s, before: %s", when, now, before)
		}
		if out, ok := c.kubectl("get", "crd", "tiers.crd.projectcalico.org"); !ok {
			t.Errorf("%s: the definition that was missing is not there: %s", when, out)
		}
	}
	if out, err := c.try("install", "manx", chart, "--set", "calicoAPIGroup=projectcalico.org/v3"); err == nil ||
		!strings.Contains(out, "set calicoAPIGroup=auto") {
		t.Errorf("the other group: %v: %s", err, out)
	}
	c.helm("install", "manx", chart)
	check("installed")
	c.helm("upgrade", "manx", chart, "--reset-then-reuse-values", "--set", "logLevel=debug")
	check("upgraded")
	c.helm("upgrade", "manx", chart, "--reuse-values", "--set", "crds=null")
	check("upgraded with the values of an earlier chart")
	o := c.byValues()
	o.release("upgrade")
	o.stored("in this group")
	c.helm("uninstall", "manx")
	c.must("get", "crd", "tiers.crd.projectcalico.org")
	c.must("create", "-f", "../../deploy/crds/projectcalico.org")
	if out, err := c.try("install", "manx", chart); err == nil || !strings.Contains(out, "definitions of both") {
		t.Errorf("with definitions of both groups: %v: %s", err, out)
	}
	if out, err := c.try("install", "manx", chart, "--dry-run=server", "--set",
		"calicoAPIGroup=crd.projectcalico.org/v1"); err != nil {
		t.Errorf("a setting names the group: %v: %s", err, out)
	}
}

// Calico's own definitions of projectcalico.org/v3 are used, and not replaced.
func TestExistingV3Stays(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.must("create", "-f", "../../deploy/crds/projectcalico.org")
	if out, err := c.try("install", "manx", chart, "--set", "calicoAPIGroup=crd.projectcalico.org/v1"); err == nil ||
		!strings.Contains(out, "set calicoAPIGroup=auto") {
		t.Errorf("the other group: %v: %s", err, out)
	}
	c.helm("install", "manx", chart)
	c.has("installed", groupV3)
	if out := c.must("get", "crd", "-l", "app.kubernetes.io/managed-by=Helm", "-o", "name"); out != "" {
		t.Errorf("definitions were taken over: %s", out)
	}
}

// The manifests go where Helm knows nothing of the cluster: the commands of the page bring the new group to a fresh
// cluster, and leave the old one alone where it is.
func TestManifestsFollowTheCluster(t *testing.T) {
	t.Parallel()
	install := func(c *cluster) { // as the page has it
		if _, ok := c.kubectl("get", "crd", "ippools.crd.projectcalico.org"); !ok {
			c.must("create", "-f", "../../deploy/manifests/manx-crds.yaml")
		}
		c.must("apply", "-f", "../../deploy/manifests/manx-kubernetes.yaml")
	}
	c := startCluster(t)
	install(c)
	if got := c.defined(); !slices.Equal(got, []string{groupV3}) {
		t.Errorf("a fresh cluster has definitions of %q", got)
	}
	c.apply()
	c.read()
	c.must("delete", "-f", "../../deploy/manifests/manx-crds.yaml")
	c.must("create", "-f", "../../deploy/crds/crd.projectcalico.org")
	install(c)
	if got := c.defined(); !slices.Equal(got, []string{groupV1}) {
		t.Errorf("a cluster with crd.projectcalico.org has definitions of %q", got)
	}
}

// `helm template`, with which Argo CD renders, has definitions only if they are wanted, and twice the same.
func TestTemplateWithoutCluster(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string // the group of the definitions
	}{
		{nil, ""},
		{[]string{"--set-string=crds.install=on"}, groupV3},
		{[]string{"--set-string=crds.install=only"}, groupV3},
		{[]string{"--set-string=crds.install=on", "--set=calicoAPIGroup=crd.projectcalico.org/v1"}, groupV1},
		// Definitions that are there cannot be told from missing ones.
		{[]string{"--api-versions=v1/Pod"}, ""},
		{[]string{"--api-versions=v1/Pod", "--api-versions=crd.projectcalico.org/v1"}, ""},
		{[]string{"--api-versions=v1/Pod", "--set-string=crds.install=on"}, groupV3},
		{[]string{"--api-versions=v1/Pod", "--api-versions=projectcalico.org/v3", "--set-string=crds.install=on"},
			groupV3},
		{[]string{"--api-versions=v1/Pod", "--api-versions=crd.projectcalico.org/v1", "--set-string=crds.install=on",
			"--set=calicoAPIGroup=crd.projectcalico.org/v1"}, groupV1},
		{[]string{"--api-versions=v1/Pod", "--api-versions=crd.projectcalico.org/v1", "--set-string=crds.install=on",
			"--set=calicoAPIGroup=both"}, groupV3},
		{[]string{"--set-string=crds.install=on", "--set=datastore=etcd"}, ""},
	} {
		out, err := helm(t, append([]string{"template", "manx", chart}, c.args...)...)
		if err != nil {
			t.Fatalf("%v: %v: %s", c.args, err, out)
		}
		for _, group := range []string{groupV1, groupV3} {
			want := 0
			if group == c.want {
				want = 22
			}
			if got := strings.Count(out, "\n  group: "+group+"\n"); got != want {
				t.Errorf("%v: %d definitions of %s, want %d", c.args, got, group, want)
			}
		}
		defined, kept := strings.Count(out, "\nkind: CustomResourceDefinition\n"), strings.Count(out, ": keep\n")
		if defined != kept {
			t.Errorf("%v: Helm keeps %d of %d definitions", c.args, kept, defined)
		}
		if slices.Contains(c.args, "--set=calicoAPIGroup=both") && (strings.Contains(out, "CALICO_API_GROUP") ||
			!strings.Contains(out, "apiGroups: [crd.projectcalico.org, projectcalico.org]")) {
			t.Errorf("%v: nodes do not detect the group, or lack the rights in both", c.args)
		}
	}
	render := func(more ...string) string {
		out, err := helm(t, append([]string{"template", "manx", chart, "--api-versions=v1/Pod",
			"--set-string=crds.install=on"}, more...)...)
		if err != nil {
			t.Fatal(out)
		}
		return out
	}
	if render() != render("--api-versions=projectcalico.org/v3", "--api-versions=projectcalico.org/v3/IPPool") {
		t.Error("Argo CD would see a difference as soon as it has made the definitions")
	}
}
