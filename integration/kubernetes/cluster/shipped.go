package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	hosts "github.com/manxnet/manx/integration/lab"
)

// Shipped is the users' installation: the image of `make image`, installed by the chart, or by the manifests where Helm
// is not in the cache. unpublished selects byHand in place of both.
func Shipped(root string, network Network, unpublished bool) (Installation, error) {
	if unpublished {
		by := byHand{Bin: filepath.Join(root, "bin")}
		if network != by.Network() {
			return nil, fmt.Errorf("the DaemonSet made by hand has %s alone", by.Network())
		}
		return by, nil
	}
	s, err := newShipped(root, network)
	if err != nil {
		return nil, err
	}
	programs, err := lab.Programs()
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(programs, "helm")); err == nil {
		return helm{s}, nil
	}
	return manifest{s}, nil
}

// Manifests is the same without Helm.
func Manifests(root string, network Network) (Installation, error) {
	s, err := newShipped(root, network)
	return manifest{s}, err
}

func newShipped(root string, network Network) (shipped, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return shipped{}, err
	}
	archives, err := filepath.Glob(filepath.Join(root, "bin", "image", "manx-*-"+runtime.GOARCH+".tar"))
	if err != nil {
		return shipped{}, err
	}
	newest, err := newest(archives)
	if err != nil {
		return shipped{}, err
	}
	s := shipped{deploy: filepath.Join(root, "deploy"), archive: newest, network: network}
	s.version = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(newest), "manx-"), "-"+runtime.GOARCH+".tar")
	return s, nil
}

// newest of some files.
func newest(paths []string) (string, error) {
	var found string
	var when int64
	for _, p := range paths {
		st, err := os.Stat(p)
		if err != nil {
			return "", err
		}
		if t := st.ModTime().UnixNano(); t > when {
			found, when = p, t
		}
	}
	if found == "" {
		return "", errors.New("there is no image in bin/image: run `make image`")
	}
	return found, nil
}

// shipped has the fields that both installations share.
type shipped struct {
	deploy, archive, version string
	network                  Network
}

// Network is what the values or variables of the installation are for.
func (s shipped) Network() Network { return s.network }

// Prepare imports the image.
func (s shipped) Prepare(c *lab.Cluster) error { return c.Import(s.archive) }

// Store applies the object as a custom resource of the Kubernetes API.
func (s shipped) Store(c *lab.Cluster, yaml string) error {
	return c.Apply(yaml)
}

// helm installs the chart.
type helm struct{ shipped }

func (h helm) helm(c *lab.Cluster, args ...string) error {
	cmd := c.Admin("helm", append([]string{"--kubeconfig=" + c.Kubeconfig(), "--namespace=" + namespace}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+c.Dir)
	out, err := cmd.CombinedOutput()
	return withOutput(out, err)
}

func (h helm) chart() string { return filepath.Join(h.deploy, "charts", "manx") }

// Install is `helm install`.
func (h helm) Install(c *lab.Cluster) error {
	args := []string{"install", "manx", h.chart(), "--set=image.tag=" + h.version}
	// Where Go's programs need this setting, so do those in pods.
	if debug := os.Getenv("GODEBUG"); debug != "" {
		args = append(args, "--set=extraEnv[0].name=GODEBUG,extraEnv[0].value="+debug)
	}
	if hosts.Patience() > 1 {
		args = append(args, "--post-renderer=awk", "--post-renderer-args="+rareProbes())
	}
	for _, s := range h.network.settings() {
		args = append(args, "--set="+s.value)
	}
	return h.helm(c, args...)
}

// helmTest is `helm test`, where Helm has installed Manx.
func (w *World) helmTest() error {
	if h, ok := w.install.(helm); ok {
		return h.helm(w.Cluster, "test", "manx", lab.Timeout(120))
	}
	return nil
}

// rareProbes is a program of awk for manifests. A probe starts a process in a container, which is much work for a
// machine that needs patience.
func rareProbes() string {
	return fmt.Sprintf(`/^ *(period|timeout)Seconds:/ { sub(/[0-9]+/, %d * $2) } 1`, hosts.Patience())
}

// Update is `helm upgrade` with another annotation of the pods, so that all pods are replaced.
func (h helm) Update(c *lab.Cluster) error {
	return h.helm(c, "upgrade", "manx", h.chart(), "--reuse-values", "--set=podAnnotations.revision=second")
}

// Uninstall cleans up all nodes by the steps of docs/operations.md, and then runs `helm uninstall`.
func (h helm) Uninstall(c *lab.Cluster) error {
	if err := h.helm(c, "upgrade", "manx", h.chart(), "--reuse-values", "--set=cleanup=true"); err != nil {
		return err
	}
	if err := cleanedUp(c); err != nil {
		return err
	}
	return h.helm(c, "uninstall", "manx", "--wait")
}

// cleanedUp waits until the cleanup DaemonSet has finished on all nodes, and the Job that removes finalizers.
func cleanedUp(c *lab.Cluster) error {
	_, err := c.Kubectl("rollout", "status", "-n", namespace, "daemonset/manx-cleanup", lab.Timeout(180))
	if err == nil {
		_, err = c.Kubectl("wait", "-n", namespace, "--for=condition=complete", "job", "-l", "k8s-app=manx-cleanup",
			lab.Timeout(180))
	}
	return err
}

// manifest applies the files that are made from the chart.
type manifest struct{ shipped }

// images matches the lines of the manifests that name Manx's image.
var images = regexp.MustCompile(`(?m)^( +image: manxnet/manx):\S+$`)

// manifest returns a file with the tested image, as a user writes a version into it.
func (m manifest) manifest(name string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(m.deploy, "manifests", name))
	text := images.ReplaceAllString(string(raw), "${1}:"+m.version)
	for _, s := range m.network.settings() {
		for _, v := range strings.Fields(s.variables) {
			text = withVariable(text, v)
		}
	}
	return text, err
}

// withVariable sets a variable NAME=VALUE of manxd in a manifest: in place of the one of that name, or beside others.
func withVariable(manifest, variable string) string {
	name, value, _ := strings.Cut(variable, "=")
	have := regexp.MustCompile(`(?m)^( +- name: ` + name + `\n +value: ).*$`)
	if have.MatchString(manifest) {
		return have.ReplaceAllString(manifest, "${1}"+strconv.Quote(value))
	}
	return beside.ReplaceAllString(manifest, "$0\n${1}- name: "+name+"\n${1}  value: "+strconv.Quote(value))
}

// beside matches a variable that manxd alone has.
var beside = regexp.MustCompile(`(?m)^( +)- name: CLUSTER_TYPE\n.*$`)

// kubeadm returns the object in which kubeadm records the pods' addresses. Manx makes its first pool of them.
func (m manifest) kubeadm() string {
	return fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data:
  ClusterConfiguration: |
    apiVersion: kubeadm.k8s.io/v1beta4
    kind: ClusterConfiguration
    networking:
      dnsDomain: cluster.local
      podSubnet: %s
      serviceSubnet: %s
`, m.network.Families.PodCIDRs(), m.network.Families.ServiceCIDRs())
}

// Install is `kubectl create` of the definitions and `kubectl apply` of the rest, on a cluster like those of kubeadm.
func (m manifest) Install(c *lab.Cluster) error {
	if err := c.Apply(m.kubeadm()); err != nil {
		return err
	}
	if _, err := c.Kubectl("create", "-f", filepath.Join(m.deploy, "manifests", "manx-crds.yaml")); err != nil {
		return err
	}
	manifest, err := m.manifest("manx-kubernetes.yaml")
	if err != nil {
		return err
	}
	return c.Apply(manifest)
}

// Update restarts all pods, one after the other.
func (m manifest) Update(c *lab.Cluster) error {
	_, err := c.Kubectl("rollout", "restart", "-n", namespace, "daemonset/manx-node")
	return err
}

// Uninstall is `kubectl delete`, and a DaemonSet that cleans all nodes up. The objects stay.
func (m manifest) Uninstall(c *lab.Cluster) error {
	manifest, err := m.manifest("manx-kubernetes.yaml")
	if err != nil {
		return err
	}
	if err := c.Delete(manifest); err != nil {
		return err
	}
	if manifest, err = m.manifest("manx-cleanup.yaml"); err != nil {
		return err
	}
	if err := c.Apply(manifest); err != nil {
		return err
	}
	if err := cleanedUp(c); err != nil {
		return err
	}
	return c.Delete(manifest)
}

// String names the way for the demo.
func (h helm) String() string { return fmt.Sprintf("helm install manx (%s; %v)", h.version, h.network) }

// String names the way for the demo.
func (m manifest) String() string {
	return fmt.Sprintf("kubectl apply -f manx-kubernetes.yaml (%s; %v)", m.version, m.network)
}

// String names the way for the demo.
func (h byHand) String() string { return "a DaemonSet made by hand, with the etcd datastore" }
