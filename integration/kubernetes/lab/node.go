package lab

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	hosts "github.com/manxnet/manx/integration/lab"
)

// Node is a machine with a kubelet: a network namespace, and when it is on also namespaces of mounts, processes and so
// on, and cgroups. It shares this machine's file system. Its writes are discarded when it is switched off.
type Node struct {
	*hosts.Node
	cluster *Cluster
	images  []string // archives to import when it is switched on

	mu       sync.Mutex
	holder   *hosts.Process // unshare(1); the namespaces of the node end with it
	init     string         // PID of its process 1, as this machine counts
	commands io.WriteCloser // to process 1
}

// nodeInit is process 1 of a node.
//
//go:embed node-init
var nodeInit string

// running reports whether the node is on.
func (n *Node) running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.holder != nil
}

// boot switches the node on: containerd, kubelet and kube-proxy run when it returns, and the images are there.
func (n *Node) boot() error {
	if err := n.configure(); err != nil {
		return err
	}
	routes := n.cluster.Spec.Families.defaultRoutes(n.Gateway(), n.Gateway6())
	if _, err := n.Node.Run("sh", "-c", routes+`
		echo 0 2>/dev/null >/proc/sys/net/bridge/bridge-nf-call-iptables; true`); err != nil {
		return err
	}
	if err := n.unshare(); err != nil {
		return err
	}
	if err := n.sendCommand("start containerd containerd --config " + n.file("containerd.toml")); err != nil {
		return err
	}
	if err := hosts.Eventually(time.Minute, func() error {
		_, err := n.RunIn("ctr", "version")
		return err
	}); err != nil {
		return err
	}
	for _, image := range append([]string{n.cluster.pause}, n.images...) {
		if err := n.importNow(image); err != nil {
			return err
		}
	}
	return errors.Join(
		n.sendCommand(fmt.Sprintf("start kubelet %s --config=%s --kubeconfig=%s --hostname-override=%s --node-ip=%s",
			n.cluster.Program("kubelet"), n.file("kubelet.yaml"),
			n.cluster.users.file("kubeconfig-system-node-"+n.Name),
			n.Name, strings.Join(n.Addresses(), ","))),
		n.sendCommand(fmt.Sprintf("start kube-proxy %s --config=%s", n.cluster.Program("kube-proxy"),
			n.file("kube-proxy.yaml"))))
}

func (n *Node) file(name string) string { return filepath.Join(n.Dir, name) }

// unshare makes the namespaces and waits until process 1 has set them up.
func (n *Node) unshare() error {
	groups, err := makeCgroups(n.cgroup())
	if err != nil {
		return err
	}
	script := n.file("node-init")
	if err := os.WriteFile(script, []byte(nodeInit), 0o755); err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	defer reader.Close()
	enter := `for group in $0; do echo $$ >"$group/cgroup.procs"; done
		exec nsenter --net="$1" unshare --mount --propagation private --pid --fork --kill-child=KILL --ipc --uts --cgroup \
			bash "$2" "$3" "$4" "$5" "$6"`
	cmd := exec.Command("sh", "-c", enter, strings.Join(groups, " "), "/run/netns/"+n.Namespace, script, n.Name, n.Dir,
		n.cluster.Dir, n.cluster.programs)
	cmd.Stdin = reader
	holder, err := n.cluster.Start("node", n.Dir, cmd)
	if err != nil {
		writer.Close()
		return err
	}
	n.mu.Lock()
	n.holder, n.commands = holder, writer
	n.mu.Unlock()
	if err := hosts.Eventually(time.Minute, n.findInit); err != nil {
		return err
	}
	if err := delegateCgroup(n.cgroup()); err != nil {
		return err
	}
	if err := n.sendCommand("begin"); err != nil {
		return err
	}
	return hosts.Eventually(time.Minute, func() error {
		select {
		case <-holder.Done():
			return fmt.Errorf("process 1 has ended:\n%s", tail(n.file("node.log"), 20))
		default:
		}
		_, err := n.RunIn("test", "-e", "/run/node-is-up")
		return err
	})
}

// findInit finds process 1: nsenter and unshare are one process, and its child is in the new namespaces.
func (n *Node) findInit() error {
	pid := strconv.Itoa(n.holder.PID())
	children, err := os.ReadFile(filepath.Join("/proc", pid, "task", pid, "children"))
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.init = strings.TrimSpace(string(children)); n.init == "" {
		return errors.New("no process 1 yet")
	}
	return nil
}

// sendCommand sends a command to process 1.
func (n *Node) sendCommand(line string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.commands == nil {
		return fmt.Errorf("node %s is off", n.Name)
	}
	_, err := io.WriteString(n.commands, line+"\n")
	return err
}

// kill switches the node off, as if the plug was pulled.
func (n *Node) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holder == nil {
		return
	}
	n.holder.Kill()
	_ = n.commands.Close()
	n.holder, n.init, n.commands = nil, "", nil
}

// Reboot switches the node off and on. Its writes and its network are lost in between.
func (n *Node) Reboot() error {
	n.kill()
	if err := errors.Join(n.removeCgroups(), n.Renew()); err != nil {
		return err
	}
	return n.boot()
}

// RunIn runs a program on the node, in all its namespaces, and returns its output.
func (n *Node) RunIn(name string, args ...string) (string, error) {
	return n.RunWith(nil, name, args...)
}

// RunWith runs a program on the node with that input.
func (n *Node) RunWith(stdin io.Reader, name string, args ...string) (string, error) {
	n.mu.Lock()
	pid := n.init
	n.mu.Unlock()
	if pid == "" {
		return "", fmt.Errorf("node %s is off", n.Name)
	}
	return run(stdin, "nsenter", append([]string{"-t", pid, "--all", "--", name}, args...)...)
}

// StopProgram ends containerd, kubelet or kube-proxy with SIGKILL; RestartProgram starts it again.
func (n *Node) StopProgram(name string) error { return n.sendCommand("stop " + name) }

// RestartProgram ends containerd, kubelet or kube-proxy with SIGKILL and starts it again.
func (n *Node) RestartProgram(name string) error { return n.sendCommand("restart " + name) }

// Log returns the path of the output of a program of the node: containerd, kubelet or kube-proxy.
func (n *Node) Log(name string) string { return n.file(name + ".log") }

// importImage imports an image archive into the node's containerd, also after each later start.
func (n *Node) importImage(archive string) error {
	n.images = append(n.images, archive)
	return n.importNow(archive)
}

func (n *Node) importNow(archive string) error {
	_, err := n.RunIn("ctr", "-n", "k8s.io", "images", "import", archive)
	return err
}

// Init returns the process ID of the node's process 1 on this machine; empty when the node is off.
func (n *Node) Init() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.init
}
