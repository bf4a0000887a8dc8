package cluster

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	"github.com/manxnet/manx/integration/kubernetes/rights"
	hosts "github.com/manxnet/manx/integration/lab"
	netns "github.com/manxnet/manx/integration/namespace"
)

// namespace is the Kubernetes namespace of Manx.
const namespace = "kube-system"

// World is a cluster on which Manx is or will be installed, and the objects that the steps have made so far.
type World struct {
	*lab.Cluster
	out     io.Writer
	install Installation
	before  map[string]footprint // of the nodes

	serverIP string // of pod server, for the time without API server
}

// Installation is a way to install Manx.
type Installation interface {
	// Prepare imports the images that the nodes need.
	Prepare(*lab.Cluster) error
	Install(*lab.Cluster) error
	// Update rolls out another revision, and returns when it is everywhere.
	Update(*lab.Cluster) error
	Uninstall(*lab.Cluster) error
	// Store stores an object of Calico's API, given as YAML of projectcalico.org/v3.
	Store(c *lab.Cluster, yaml string) error
	// Network is what it gives pods.
	Network() Network
}

// Step is one property that a cluster shows. Its error names the broken promise.
type Step struct {
	Name string
	Do   func(*World) error
}

// nodes are three, the third in its own rack, or for WireGuard two in one rack: all that encryption needs.
func (n Network) nodes() []hosts.NodeSpec {
	all := []hosts.NodeSpec{{Name: "node1"}, {Name: "node2"}, {Name: "node3", Rack: 1}}
	if n.Mode == WireGuard {
		return all[:2]
	}
	return all
}

// New starts a control plane for the nodes of the network. The output of the steps goes to out.
func New(name string, install Installation, out io.Writer) (*World, error) {
	spec := lab.Spec{Name: name, Families: install.Network().Families, Nodes: install.Network().nodes()}
	if install.Network().Mode != WireGuard { // its steps read no audit log
		spec.Audit = rights.Policy(rights.Daemon, rights.Plugin, rights.Controllers)
	}
	c, err := lab.New(spec)
	if err != nil {
		return nil, err
	}
	return &World{Cluster: c, out: out, install: install, before: map[string]footprint{}}, nil
}

// show prints a result with its title.
func (w *World) show(title, text string) {
	fmt.Fprintf(w.out, "\n== %s\n%s\n", title, strings.TrimRight(text, "\n"))
}

// showOutput runs kubectl and prints its output.
func (w *World) showOutput(args ...string) error {
	out, err := w.Kubectl(args...)
	if err == nil {
		w.show("kubectl "+strings.Join(args, " "), out)
	}
	return err
}

// nodePod is the name of the pod that manxd runs in on a node.
func (w *World) nodePod(node string) (string, error) {
	pods, err := w.podsOf("-n", namespace, "-l", "k8s-app=manx-node")
	if err != nil {
		return "", err
	}
	for _, p := range pods {
		if p.node == node {
			return p.name, nil
		}
	}
	return "", fmt.Errorf("manxd does not run on %s", node)
}

// manxd runs a program of Manx's image beside manxd of that node, with kubectl exec.
func (w *World) manxd(node, program string, args ...string) (string, error) {
	pod, err := w.nodePod(node)
	if err != nil {
		return "", err
	}
	return w.Kubectl(append([]string{"exec", "-n", namespace, pod, "-c", "manxd", "--", program}, args...)...)
}

// outside returns the command that runs a program on the router, in place of a host outside the cluster.
func (w *World) outside(name string, args ...string) *exec.Cmd {
	return netns.Command(w.ToRs[0].Namespace, name, args...)
}

// connect runs cmd with the arguments of agnhost that open a TCP connection.
func connect(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		text := strings.TrimSpace(string(out))
		return fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[max(0, len(cmd.Args)-4):], " "), err, text)
	}
	return nil
}

// from returns the command of a connection from a pod.
func (w *World) from(pod, target string) *exec.Cmd {
	return w.KubectlCommand("exec", pod, "--", "/agnhost", "connect", target, lab.Timeout(2))
}

// fromOutside returns the command of a connection from outside the cluster.
func (w *World) fromOutside(target string) *exec.Cmd {
	return w.outside(w.Program("agnhost"), "connect", target, lab.Timeout(2))
}

// eventually tries until a deadline that suffices for a busy machine.
func eventually(check func() error) error { return hosts.Eventually(2*time.Minute, check) }

// podIP returns the address of a pod.
func (w *World) podIP(name string) (string, error) {
	ip, err := w.Kubectl("get", "pod", name, "-o", "jsonpath={.status.podIP}")
	if err == nil && ip == "" {
		err = errors.New("pod " + name + " has no address")
	}
	return ip, err
}

// withOutput returns the error of a command with its output.
func withOutput(out []byte, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
