package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// Node is one Manx host.
type Node struct {
	Name      string
	Namespace string
	Dir       string     // its /run/manx, /var/lib/manx and so on
	IP4, IP6  netip.Addr // of the first uplink

	// Within is put before the command of manxd: a program that runs another one in another environment.
	Within []string

	lab     *Lab
	uplinks []uplink
	args    []string
	manxd   *Process
	outside string // endpoint of the datastore for programs that see another file system than manxd; else empty
}

// Socket is the control socket of the node's manxd.
func (n *Node) Socket() string { return filepath.Join(n.Dir, "run", "manxd.sock") }

// EtcdSocket is the endpoint of the datastore for programs of this host, when the node embeds it. Namespaces of
// networks share it.
func (n *Node) EtcdSocket() string { return "unix://" + filepath.Join(n.dataDir(), "etcd.sock") }

func (n *Node) dataDir() string { return filepath.Join(n.Dir, "data") }

// EmbedDatastore are the manxd arguments of the node that holds the datastore of the lab, for itself and for other
// nodes.
func (n *Node) EmbedDatastore() []string {
	return []string{"--datastore=embedded", "--embedded-listen=" + n.IP4.String() + ":2379"}
}

// UseDatastore are the manxd arguments of a node that uses the datastore which other embeds; its manxd has been
// started. All nodes share one certificate.
func UseDatastore(other *Node) []string {
	dir := filepath.Join(other.Dir, "client")
	if _, err := os.Stat(dir); err != nil {
		// Without the files manxd does not start, and prints why.
		_ = Eventually(certificatePatience, func() error {
			_, err := command(filepath.Join(other.lab.Spec.Bin, "manxd"), "client-certificate", "lab", dir,
				"--data-dir="+other.dataDir())
			return err
		})
	}
	return []string{"--datastore=etcdv3", fmt.Sprintf("--etcd-endpoints=https://%s:2379", other.IP4),
		"--etcd-ca-cert-file=" + filepath.Join(dir, "ca.crt"),
		"--etcd-cert-file=" + filepath.Join(dir, "client.crt"), "--etcd-key-file=" + filepath.Join(dir, "client.key")}
}

// certificatePatience is the time in which a started manxd makes its certificate authority.
const certificatePatience = 30 * time.Second

// StartManxd runs manxd on the node with these arguments beside the lab's own (node name, folders). A later call
// without arguments, after the end of the daemon, uses the arguments of the earlier call.
func (n *Node) StartManxd(args ...string) error {
	if len(args) > 0 {
		n.args = args
	}
	all := slices.Concat(n.Flags(), []string{"--log-format=text", "--wait-for-datastore"}, n.args)
	command := slices.Concat(n.Within, []string{filepath.Join(n.lab.Spec.Bin, "manxd")}, all)
	p, err := n.lab.start("manxd", n.Dir, namespace.Command(n.Namespace, command[0], command[1:]...))
	n.manxd = p
	return err
}

// Flags are the flags of manxd with the name and the folders of the node.
func (n *Node) Flags() []string {
	return []string{"--node-name=" + n.Name, "--run-dir=" + filepath.Join(n.Dir, "run"), "--data-dir=" + n.dataDir(),
		"--nodename-file=" + filepath.Join(n.Dir, "nodename"), "--mtu-file=" + filepath.Join(n.Dir, "mtu"),
		"--endpoint-status-path-prefix=" + n.Dir}
}

// StartBirdsock runs manx-birdsock beside the node's daemon, with its socket for IPv4 at a path.
func (n *Node) StartBirdsock(path string) error {
	_, err := n.lab.start("manx-birdsock", n.Dir, namespace.Command(n.Namespace,
		filepath.Join(n.lab.Spec.Bin, "manx-birdsock"), "--socket="+path, "--manxd="+n.Socket()))
	return err
}

// Manxd is the running daemon.
func (n *Node) Manxd() *Process { return n.manxd }

// Log is the output of manxd so far.
func (n *Node) Log() string {
	b, err := os.ReadFile(filepath.Join(n.Dir, "manxd.log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Run runs a program on the node and returns its output.
func (n *Node) Run(name string, args ...string) (string, error) {
	return command("ip", append([]string{"netns", "exec", n.Namespace, name}, args...)...)
}

// Manxctl runs the CLI on the node, against the node's daemon and its datastore, which the CLI detects.
func (n *Node) Manxctl(args ...string) (string, error) {
	flags := []string{"--socket=" + n.Socket()}
	if n.outside != "" {
		flags = append(flags, "--etcd-endpoints="+n.outside)
	}
	return n.Run(filepath.Join(n.lab.Spec.Bin, "manxctl"), append(flags, args...)...)
}

// Apply stores resources that are given as YAML.
func (n *Node) Apply(yaml string) error {
	path := filepath.Join(n.Dir, fmt.Sprintf("apply-%d.yaml", time.Now().UnixNano()))
	if err := os.WriteFile(path, []byte(yaml), 0o644); err != nil {
		return err
	}
	_, err := n.Manxctl("apply", "-f", path)
	return err
}

// Ready waits until manxd reports ready; the error lists the missing conditions.
func (n *Node) Ready(timeout time.Duration) error {
	return Eventually(timeout, func() error {
		select {
		case <-n.manxd.Done():
			return fmt.Errorf("node %s: manxd has ended; its log:\n%s", n.Name, n.Log())
		default:
		}
		out, err := n.Get("/readyz?verbose")
		if err != nil {
			return fmt.Errorf("node %s: not ready: %w\n%s", n.Name, err, out)
		}
		return nil
	})
}

// Routes is the node's kernel routing table of a family, "-4" or "-6".
func (n *Node) Routes(family string) (string, error) { return n.Run("ip", family, "route", "show") }
