package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	hosts "github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// The addresses of Services and, if Manx's pool is to be configured, of pods.
const (
	ServiceCIDR  = "10.96.0.0/16"
	PodCIDR      = "10.244.0.0/16"
	apiService   = "10.96.0.1"
	clusterDNS   = "10.96.0.10"
	serviceCIDR6 = "fd00:10:96::/112"
	PodCIDR6     = "fd00:10:244::/56"
	apiService6  = "fd00:10:96::1"
	clusterDNS6  = "fd00:10:96::a"
)

// Spec describes a cluster.
type Spec struct {
	// Name is unique on this host, at most 8 characters: of namespaces (NAME-NODE), cgroups and files.
	Name string
	// Nodes and the racks that they are in.
	Nodes []hosts.NodeSpec
	// Families of the addresses of nodes, pods and Services: IPv4 if unset.
	Families Families
	// ProxyMode is kube-proxy's: nftables if unset, or iptables.
	ProxyMode string
	// Audit is a policy for the API server's audit log. The log is the file AuditLog.
	Audit string
	// FeatureGates of the API server that differ from their defaults, such as A=true,B=false.
	FeatureGates string
}

// Cluster is a running control plane with its nodes. The rack around it has a router, ToRs[0], and the machine that the
// control plane runs on, Control.
type Cluster struct {
	*hosts.Lab
	Spec    Spec
	Control *hosts.Node
	Workers []*Node

	programs string
	users    *credentials
	plane    []*hosts.Process // in the order of their start
	begun    [][]string       // their command lines
	starts   []period         // from a start of the API server after an outage until it was ready
	pause    string           // archive of the image
}

// New starts a control plane; nodes are off. Close ends and removes everything.
func New(spec Spec) (*Cluster, error) {
	programs, err := Require()
	if err != nil {
		return nil, err
	}
	removeCgroups(0)
	machines := append([]hosts.NodeSpec{{Name: "control"}}, spec.Nodes...)
	spec.Families, spec.ProxyMode = cmp.Or(spec.Families, IPv4), cmp.Or(spec.ProxyMode, "nftables")
	l, err := hosts.New(hosts.Spec{Name: spec.Name, Bin: programs, Nodes: machines, IPv6: spec.Families.Has6(),
		NoIPv4: !spec.Families.Has4()})
	if err != nil {
		return nil, err
	}
	c := &Cluster{Lab: l, Spec: spec, Control: l.Nodes[0], programs: programs}
	for _, n := range l.Nodes[1:] {
		c.Workers = append(c.Workers, &Node{Node: n, cluster: c})
	}
	if err := errors.Join(c.buildPause(), c.startPlane()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Remove removes the remains of a run of that name.
func Remove(name string) error {
	err := hosts.Remove(name)
	removeCgroups(os.Getpid())
	return err
}

// Close ends everything and removes it.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Workers {
		n.kill()
	}
	// The API server ends before etcd: without etcd it takes long to end.
	for i := len(c.plane) - 1; i >= 0; i-- {
		c.plane[i].Kill()
	}
	errs = append(errs, c.Lab.Close())
	for _, n := range c.Workers {
		errs = append(errs, n.removeCgroups())
	}
	return errors.Join(errs...)
}

// Keep leaves the cluster running when this process ends.
func (c *Cluster) Keep() error {
	errs := []error{c.Lab.Keep()}
	for _, n := range c.Workers {
		errs = append(errs, n.sendCommand("keep"))
	}
	return errors.Join(errs...)
}

func (c *Cluster) startPlane() error {
	address := c.address(c.Control.IP4, c.Control.IP6)
	url := "https://" + net.JoinHostPort(address, "6443")
	var names []string
	for _, n := range c.Workers {
		names = append(names, n.Name)
	}
	var err error
	c.users, err = newCredentials(filepath.Join(c.Dir, "pki"), url,
		[]net.IP{net.ParseIP(address), net.ParseIP(c.Spec.Families.apiService())}, names)
	if err != nil {
		return err
	}
	configs := map[string]string{}
	for user := range users {
		if configs[user], err = c.users.kubeconfig(user); err != nil {
			return err
		}
	}
	routes := c.Spec.Families.defaultRoutes(c.Control.Gateway(), c.Control.Gateway6())
	if _, err := c.Control.Run("sh", "-ec", routes); err != nil {
		return err
	}
	for _, args := range [][]string{c.etcd(), c.apiserver(address)} {
		if err := c.startProgram(args[0], args[1:]...); err != nil {
			return err
		}
	}
	// The controllers end where the API server is not ready within 10 s.
	if err := c.planeAnswers("--raw=/readyz"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"kube-controller-manager", "--kubeconfig=" + configs["system:kube-controller-manager"], "--leader-elect=false",
			"--service-account-private-key-file=" + c.users.file("sa.key"), "--root-ca-file=" + c.users.file("ca.crt"),
			"--use-service-account-credentials=true", "--service-cluster-ip-range=" + c.Spec.Families.ServiceCIDRs()},
		{"kube-scheduler", "--kubeconfig=" + configs["system:kube-scheduler"], "--leader-elect=false"},
	} {
		if err := c.startProgram(args[0], args[1:]...); err != nil {
			return err
		}
	}
	return c.planeAnswers("serviceaccount", "default")
}

// Program returns the path of a program of Kubernetes or Debian.
func (c *Cluster) Program(name string) string {
	if path := filepath.Join(c.programs, name); exists(path) {
		return path
	}
	return name
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (c *Cluster) startProgram(name string, args ...string) error {
	p, err := c.Start(name, c.Control.Dir, namespace.Command(c.Control.Namespace, c.Program(name), args...))
	if err == nil {
		c.plane = append(c.plane, p)
		c.begun = append(c.begun, append([]string{name}, args...))
	}
	return err
}

// etcd holds /registry and, for a cluster whose Manx uses etcd, /calico. It is for a network without a route to others.
func (c *Cluster) etcd() []string {
	return []string{"etcd", "--unsafe-no-fsync", "--data-dir=" + filepath.Join(c.Control.Dir, "etcd"),
		"--listen-client-urls=http://" + net.JoinHostPort(c.Spec.Families.everyAddress(), "2379"),
		"--advertise-client-urls=" + c.Etcd(),
		"--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn"}
}

// Etcd returns the endpoint of the control plane's etcd.
func (c *Cluster) Etcd() string {
	return "http://" + net.JoinHostPort(c.address(c.Control.IP4, c.Control.IP6), "2379")
}

// AuditLog is the API server's, if Spec.Audit is set.
func (c *Cluster) AuditLog() string { return filepath.Join(c.Control.Dir, "audit.log") }

func (c *Cluster) apiserver(address string) []string {
	args := []string{"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--advertise-address=" + address,
		"--bind-address=" + c.Spec.Families.everyAddress(),
		"--tls-cert-file=" + c.users.file("server.crt"), "--tls-private-key-file=" + c.users.file("server.key"),
		"--client-ca-file=" + c.users.file("ca.crt"), "--token-auth-file=" + c.users.file("tokens.csv"),
		"--authorization-mode=Node,RBAC", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.users.file("sa.pub"),
		"--service-account-signing-key-file=" + c.users.file("sa.key"),
		"--service-cluster-ip-range=" + c.Spec.Families.ServiceCIDRs(), "--allow-privileged=true",
		// Otherwise it resolves the name of a node for logs and exec.
		"--kubelet-preferred-address-types=InternalIP"}
	if c.Spec.FeatureGates != "" {
		args = append(args, "--feature-gates="+c.Spec.FeatureGates)
	}
	if c.Spec.Audit != "" {
		policy := filepath.Join(c.Control.Dir, "audit.yaml")
		if err := os.WriteFile(policy, []byte(c.Spec.Audit), 0o644); err == nil {
			args = append(args, "--audit-policy-file="+policy, "--audit-log-path="+c.AuditLog())
		}
	}
	return args
}

// planeAnswers waits until `kubectl get` answers.
func (c *Cluster) planeAnswers(get ...string) error {
	return hosts.Eventually(2*time.Minute, func() error {
		for _, p := range c.plane {
			select {
			case <-p.Done():
				return fmt.Errorf("%s has ended; the end of its log:\n%s", p.Name,
					tail(filepath.Join(c.Control.Dir, p.Name+".log"), 20))
			default:
			}
		}
		_, err := c.Kubectl(append([]string{"get"}, get...)...)
		return err
	})
}

// tail returns the end of a file.
func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Kubeconfig returns the file of the administrator. The address in it can be reached in the namespaces of the lab.
func (c *Cluster) Kubeconfig() string { return c.users.file("kubeconfig-admin") }

// Kubectl runs kubectl as administrator and returns its output.
func (c *Cluster) Kubectl(args ...string) (string, error) { return c.kubectl(nil, args...) }

func (c *Cluster) kubectl(stdin *strings.Reader, args ...string) (string, error) {
	cmd := c.KubectlCommand(args...)
	if stdin == nil {
		return run(nil, cmd.Args[0], cmd.Args[1:]...)
	}
	return run(stdin, cmd.Args[0], cmd.Args[1:]...)
}

// KubectlCommand is the command of kubectl, for callers that write to its standard input.
func (c *Cluster) KubectlCommand(args ...string) *exec.Cmd {
	return c.Admin("kubectl", append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// Admin returns a command of a program in the cache, or of this machine, that runs beside the control plane.
func (c *Cluster) Admin(name string, args ...string) *exec.Cmd {
	return namespace.Command(c.Control.Namespace, c.Program(name), args...)
}

// Apply stores objects that are given as YAML.
func (c *Cluster) Apply(yaml string) error {
	_, err := c.kubectl(strings.NewReader(yaml), "apply", "-f", "-")
	return err
}

// Delete deletes objects that are given as YAML, and waits for the end of the deletion.
func (c *Cluster) Delete(yaml string) error {
	_, err := c.kubectl(strings.NewReader(yaml), "delete", "-f", "-", "--wait", "--cascade=foreground")
	return err
}

// StartNodes switches on the nodes that are off, all at once.
func (c *Cluster) StartNodes() error {
	return c.each(func(n *Node) error {
		if n.running() {
			return nil
		}
		return n.boot()
	})
}

// each calls do for all nodes at once.
func (c *Cluster) each(do func(*Node) error) error {
	errs := make([]error, len(c.Workers))
	var all sync.WaitGroup
	for i, n := range c.Workers {
		all.Go(func() {
			if err := do(n); err != nil {
				errs[i] = fmt.Errorf("node %s: %w", n.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Worker returns a node by name. It panics for an unknown name, which is a mistake in the test.
func (c *Cluster) Worker(name string) *Node {
	for _, n := range c.Workers {
		if n.Name == name {
			return n
		}
	}
	panic("lab: no node " + name)
}

// Import imports an image archive into containerd of all nodes that are on.
func (c *Cluster) Import(archive string) error {
	return c.each(func(n *Node) error {
		if !n.running() {
			return nil
		}
		return n.importImage(archive)
	})
}
