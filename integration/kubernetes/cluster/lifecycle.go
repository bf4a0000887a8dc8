package cluster

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

func (w *World) update() error {
	return w.under("the update", func() error {
		if err := w.install.Update(w.Cluster); err != nil {
			return err
		}
		if err := w.rolledOut(); err != nil {
			return err
		}
		return w.showAllSessions()
	})
}

func (w *World) reboot() error {
	node := w.Worker("node3")
	if err := w.under("the drain and the start of node3", func() error {
		if _, err := w.Kubectl("drain", node.Name, "--ignore-daemonsets", "--delete-emptydir-data",
			lab.Timeout(120)); err != nil {
			return err
		}
		if err := node.Reboot(); err != nil {
			return err
		}
		if err := w.rolledOut(); err != nil {
			return err
		}
		if err := w.WaitNodes(); err != nil {
			return err
		}
		_, err := w.Kubectl("uncordon", node.Name)
		return err
	}); err != nil {
		return err
	}
	// The evicted pod waits for the node, because each node has one pod.
	if _, err := w.Kubectl("rollout", "status", "deployment/web", lab.Timeout(180)); err != nil {
		return err
	}
	if err := w.showOutput("get", "pods", "-o", "wide"); err != nil {
		return err
	}
	if err := w.showSessions(node.Name); err != nil {
		return err
	}
	return w.podToPod()
}

// footprint has the traces of a node network, line by line.
type footprint []string

// traces has the commands that list them.
var traces = []string{
	`ip -o link | awk -F '[:@] *' '{print "link " $2}'`,
	`ip -o addr show scope global | awk '{print "address " $2 " " $4}'`,
	`(ip route show table all type unicast; ip -6 route show table all type unicast) | grep -v ' dev lo ' |
		grep -v ^fe80 | sed 's/^/route /'`,
	`(ip route show table all type blackhole; ip -6 route show table all type blackhole) | sed 's/^/route /'`,
	`(ip rule; ip -6 rule) | sed 's/^/rule /'`,
	`nft list tables`,
	`find /etc/cni /opt/cni /var/lib/calico /run/calico /run/manx /var/lib/manx /var/log/calico /var/log/manx /var/lib/cni \
		2>/dev/null`,
}

// kubeProxy makes tables of its own at any time.
var kubeProxy = regexp.MustCompile(`^table ip6? kube-proxy`)

func (w *World) footprint(n *lab.Node) (footprint, error) {
	var all footprint
	for _, t := range traces {
		out, err := n.RunIn("sh", "-c", t+" || true")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			line = strings.TrimSpace(line)
			if line != "" && !kubeProxy.MatchString(line) {
				all = append(all, line)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func (w *World) rememberFootprint(n *lab.Node) (err error) {
	w.before[n.Name], err = w.footprint(n)
	return err
}

func (w *World) uninstall() error {
	if _, err := w.Kubectl("delete", "deployment,service,pod", "--all", lab.Timeout(120),
		"--grace-period=1"); err != nil {
		return err
	}
	if err := w.StopDNS(); err != nil {
		return err
	}
	// Pods of a Deployment end after its deletion.
	if err := eventually(func() error {
		out, err := w.Kubectl("get", "pods", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("still there: %s", out)
		}
		return err
	}); err != nil {
		return err
	}
	if err := w.install.Uninstall(w.Cluster); err != nil {
		return err
	}
	for _, n := range w.Workers {
		if err := eventually(func() error { return w.compareWithBefore(n) }); err != nil {
			return err
		}
		w.show(n.Name, "links, routes, rules and tables of nftables are as before the installation;\n"+
			"so are the files but for "+strings.Join(kept, ", ")+"; empty are "+strings.Join(emptied, ", "))
	}
	if err := eventually(w.nothingInTheAPI); err != nil { // pods take a moment to end
		return err
	}
	w.show("the Kubernetes API", "the definitions stay, and the objects with them:")
	return w.showOutput("get", "ippools.projectcalico.org,bgppeers.projectcalico.org", "--ignore-not-found")
}

// nothingInTheAPI searches for objects of an installation beside custom resources and their definitions.
func (w *World) nothingInTheAPI() error {
	out, err := w.Kubectl("get", "-A", "-o", "name",
		"clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts,"+
			"daemonsets,deployments,pods,configmaps,secrets,services,priorityclasses,"+
			"validatingadmissionpolicies,validatingadmissionpolicybindings")
	if err != nil {
		return err
	}
	var left []error
	for line := range strings.Lines(out) {
		if strings.Contains(line, "manx") {
			left = append(left, errors.New("left behind in the API: "+strings.TrimSpace(line)))
		}
	}
	return errors.Join(left...)
}

// kept are files that an uninstallation leaves on purpose: state for the next installation, logs, and files that the
// next start of the machine removes.
var kept = []string{"/var/lib/calico", "/var/log/calico", "/run/calico", "/run/manx"}

// emptied are folders that stay without content: the first is mounted into the container that cleans up, and the others
// are the runtime's, which makes them at its first ADD.
var emptied = []string{"/var/lib/manx", "/var/lib/cni", "/var/lib/cni/results"}

func isKept(line string) bool {
	return slices.Contains(emptied, line) ||
		slices.ContainsFunc(kept, func(dir string) bool { return line == dir || strings.HasPrefix(line, dir+"/") })
}

// compareWithBefore compares the node with its state before Manx came.
func (w *World) compareWithBefore(n *lab.Node) error {
	now, err := w.footprint(n)
	if err != nil {
		return err
	}
	var left []string
	for _, line := range now {
		if !slices.Contains(w.before[n.Name], line) && !isKept(line) {
			left = append(left, line)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("%s: left behind:\n%s", n.Name, strings.Join(left, "\n"))
	}
	return nil
}
