package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

// page returns the blocks of a page in a language, which follow a line.
func page(t *testing.T, name, after, language string) (blocks []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), after)
	for found {
		var block string
		if _, rest, found = strings.Cut(rest, "```"+language+"\n"); found {
			block, rest, _ = strings.Cut(rest, "```\n")
			blocks = append(blocks, block)
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("%s has no block of %s after %q", name, language, after)
	}
	return blocks
}

// objectsByValues is a cluster whose release gets the values of the page.
type objectsByValues struct {
	*cluster
	values string
}

func (c *cluster) byValues() objectsByValues {
	c.Helper()
	file := filepath.Join(c.TempDir(), "values.yaml")
	text := page(c.T, "kubernetes.md", "### Peers and pools by values\n", "yaml")[0]
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	return objectsByValues{c, file}
}

// release installs or upgrades with the values of the page.
func (o objectsByValues) release(verb string, more ...string) {
	o.Helper()
	o.helm(append([]string{verb, "manx", chart, "-f", o.values}, more...)...)
}

// stored fails the test unless the programs of Manx read the objects of the page's values.
func (o objectsByValues) stored(when string) {
	o.Helper()
	s, err := kubernetes.OpenREST(o.Context(), kubernetes.Config{}, o.server.Config(apiserver.Admin), zap.NewNop())
	if err != nil {
		o.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // everything is read
	read := func(kind model.Kind, name string) any {
		o.Helper()
		object, err := s.Get(o.Context(), model.ResourceKey(kind, name))
		if err != nil || object.Err != nil {
			o.Fatalf("%s: %s %s: %v, %v", when, kind, name, err, object)
		}
		return object.Value
	}
	if p := read(model.KindBGPPeer, "rack-a").(*model.BGPPeer); p.Spec.PeerIP != "10.0.1.1" ||
		p.Spec.ASNumber != 4200000001 || p.Annotations["manx.io/bfd"] != "true" {
		o.Errorf("%s: the peer is %+v", when, p)
	}
	if c := read(model.KindBGPConfiguration, "default").(*model.BGPConfiguration); c.Spec.NodeToNodeMeshEnabled ==
		nil || *c.Spec.NodeToNodeMeshEnabled {
		o.Errorf("%s: the configuration is %+v", when, c.Spec)
	}
	if f := read(model.KindBGPFilter, "to-switch").(*model.BGPFilter); len(f.Spec.ExportV4) != 1 {
		o.Errorf("%s: the filter is %+v", when, f.Spec)
	}
	for _, name := range []string{"pods", "public"} {
		if p := read(model.KindIPPool, name).(*model.IPPool); p.Spec.CIDR == "" {
			o.Errorf("%s: the pool %s is %+v", when, name, p.Spec)
		}
	}
}

// refused fails the test unless Helm refuses a command, and returns the command of its message that helps.
func (o objectsByValues) refused(object string, args ...string) (remedy string) {
	o.Helper()
	out, err := o.try(args...)
	_, remedy, found := strings.Cut(out, "repeat this: ")
	if err == nil || !found || !strings.Contains(out, object+" exists and is not of this release") {
		o.Fatalf("helm %v: %v: %s", args, err, out)
	}
	remedy, _, _ = strings.Cut(remedy, "\n")
	return remedy
}

// run runs a command of the user's shell.
func (c *cluster) run(command string) {
	c.Helper()
	cmd := exec.Command("sh", "-ec", command)
	cmd.Env = append(os.Environ(), "PATH="+apiserver.Programs()+":"+os.Getenv("PATH"), "KUBECONFIG="+c.config)
	if out, err := cmd.CombinedOutput(); err != nil {
		c.Fatalf("%s: %v: %s", command, err, out)
	}
}

// Peers, pools and so on come with the values of the page into a fresh cluster, by the page's commands. They stay
// through upgrades, rollbacks and uninstalling. Helm would silently ignore the values of an object that is there
// before: the chart refuses that, with a command that helps.
func TestObjectsByValues(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	o := c.byValues()
	install := []string{"install", "manx", chart, "-f", o.values}
	if out, err := c.try(install...); err == nil || !strings.Contains(out, "no definition of BGP") ||
		!strings.Contains(out, "helm install manx-definitions CHART --namespace kube-system --set crds.install=only") {
		t.Errorf("without definitions: %v: %s", err, out)
	}
	c.helm("install", "manx-definitions", chart, "--set", "crds.install=only", "--wait")
	if out := c.must("get", "daemonsets,deployments,serviceaccounts,clusterroles", "-A", "-l",
		"app.kubernetes.io/name=manx", "-o", "name"); out != "" {
		t.Errorf("the release of definitions has more: %s", out)
	}

	// A manxd was here before, and a user has set something.
	c.run(`kubectl create -f - <<'END'
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {listenPort: 1790}
END`)
	c.run(o.refused("BGPConfiguration default", install...))
	o.release("install")
	o.stored("installed")
	c.has("installed", groupV3)
	spec := func(field string) string {
		return c.must("get", "bgpconfig/default", "bgpp/rack-a", "-o", "jsonpath={.items[*].spec."+field+"}")
	}
	if port := spec("listenPort"); port != "1790" {
		t.Errorf("the port that a user has set is %q", port)
	}
	env := c.must("-n", "kube-system", "get", "daemonset/manx-node", "-o",
		`jsonpath={.spec.template.spec.containers[0].env[?(@.name=="MANX_NO_DEFAULT_BGP_CONFIGURATION")].value}`)
	if env != "true" {
		t.Error("manxd could be first to make the BGPConfiguration")
	}

	o.release("upgrade", "--set", "bgp.configuration.spec.asNumber=64600")
	if as := spec("asNumber"); as != "64600 4200000001" {
		t.Errorf("upgraded, the AS numbers are %q", as)
	}
	before := c.must("get", "bgpp,ippools", "-o", "jsonpath={.items[*].metadata.uid}")
	c.helm("upgrade", "manx", chart, "--reset-values")
	o.stored("upgraded without the values")
	remedy := o.refused("BGPPeer rack-a", append([]string{"upgrade"}, append(install[1:],
		"--set", "bgp.configuration.spec.asNumber=64600", "--set", "bgp.peers[0].name=rack-a",
		"--set", "bgp.peers[0].spec.nodeSelector=rack == 'b'", "--set", "bgp.peers[0].spec.asNumber=65002")...)...)
	o.release("upgrade", "--set", "bgp.configuration.spec.asNumber=64600")
	c.helm("rollback", "manx", "3")
	o.stored("rolled back to the revision without the values")
	c.helm("uninstall", "manx")
	o.stored("uninstalled")
	c.run(remedy)
	if s := spec("nodeSelector"); s != "rack == 'b'" {
		t.Errorf("the command of the message makes the selector %q", s)
	}
	if now := c.must("get", "bgpp,ippools", "-o", "jsonpath={.items[*].metadata.uid}"); now != before {
		t.Errorf("the objects were replaced: %s, before: %s", now, before)
	}
}
