package lab

import (
	"fmt"
	"path/filepath"
	"strings"

	hosts "github.com/manxnet/manx/integration/lab"
)

// patience of kubectl, which waits for conditions.
var patience = Timeout(180)

// Timeout is the flag of kubectl, Helm and agnhost for that time on a machine of usual speed.
func Timeout(seconds int) string { return fmt.Sprintf("--timeout=%ds", seconds*hosts.Patience()) }

// WaitNodes waits until all nodes that are on are Ready.
func (c *Cluster) WaitNodes() error {
	var names []string
	for _, n := range c.Workers {
		if n.running() {
			names = append(names, "node/"+n.Name)
		}
	}
	// A node that registers itself does not exist at first.
	_, err := c.Kubectl(append([]string{"wait", "--for=create", patience}, names...)...)
	if err != nil {
		return err
	}
	_, err = c.Kubectl(append([]string{"wait", "--for=condition=Ready", patience}, names...)...)
	return err
}

// WaitPod waits until pods of the default namespace are Ready.
func (c *Cluster) WaitPod(names ...string) error {
	_, err := c.Kubectl(append([]string{"wait", "pod", "--for=condition=Ready", patience}, names...)...)
	return err
}

// writeFile writes a file on the node.
func (n *Node) writeFile(path, text string) error {
	_, err := n.RunWith(strings.NewReader(text), "sh", "-c",
		`mkdir -p "$(dirname "$1")" && cat >"$1.new" && mv "$1.new" "$1"`, "sh", path)
	return err
}

// Describe returns the first data for debugging.
func (c *Cluster) Describe() string {
	var b strings.Builder
	show := func(title, text string, err error) {
		fmt.Fprintf(&b, "== %s\n%s\n", title, strings.TrimSpace(text))
		if err != nil {
			fmt.Fprintln(&b, err)
		}
	}
	for _, args := range [][]string{
		{"get", "nodes", "-o", "wide"},
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--sort-by=.lastTimestamp"},
		{"logs", "-n", "kube-system", "-l", "k8s-app=manx-node", "--tail=30", "--prefix", "--all-containers"},
	} {
		out, err := c.Kubectl(args...)
		show("kubectl "+strings.Join(args, " "), out, err)
	}
	for _, n := range c.Workers {
		for _, program := range []string{"node", "containerd", "kubelet", "kube-proxy"} {
			show("end of the log of "+program+" on "+n.Name, tail(n.Log(program), 8), nil)
		}
	}
	for _, p := range c.plane {
		show("end of the log of "+p.Name, tail(filepath.Join(c.Control.Dir, p.Name+".log"), 4), nil)
	}
	return b.String()
}
