package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	daemonSet = "manx-node"
	container = "manxd"
)

// Node is a node with a pod of manx-node.
type Node struct {
	Name, Pod string
	// Absent is the reason why no command can run in the pod; empty if one can.
	Absent string
}

// Nodes returns the nodes with a pod of manx-node by name; with only, this node alone.
func (c *Cluster) Nodes(ctx context.Context, only string) ([]Node, error) {
	pods, err := c.pods(ctx, c.namespace, "k8s-app="+daemonSet, "")
	if err != nil {
		return nil, fmt.Errorf("pods of %s in namespace %s: %w", daemonSet, c.namespace, err)
	}
	all := nodesOf(pods)
	if len(all) == 0 {
		return nil, fmt.Errorf("namespace %s has no pod of the DaemonSet %s: name the namespace of Manx with "+
			"--manx-namespace, or the cluster with --context", c.namespace, daemonSet)
	}
	if only == "" {
		return all, nil
	}
	if i := slices.IndexFunc(all, func(n Node) bool { return n.Name == only }); i >= 0 {
		return all[i : i+1], nil
	}
	return nil, fmt.Errorf("no pod of %s runs on node %q; nodes with one are: %s", daemonSet, only, names(all))
}

// mostNames bounds a list of nodes in a message.
const mostNames = 10

func names(nodes []Node) string {
	var list []string
	for _, n := range nodes[:min(len(nodes), mostNames)] {
		list = append(list, n.Name)
	}
	if more := len(nodes) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}

// nodesOf returns the node of each pod of the DaemonSet. Of two pods on a node, as in an update, the one that stays
// counts. Pods of other owners do not: their labels can be anything.
func nodesOf(pods []corev1.Pod) (nodes []Node) {
	best := map[string]*corev1.Pod{}
	for i := range pods {
		p := &pods[i]
		owner := metav1.GetControllerOf(p)
		if owner == nil || owner.Kind != "DaemonSet" || owner.Name != daemonSet || p.Spec.NodeName == "" {
			continue
		}
		if b := best[p.Spec.NodeName]; b == nil || rank(p) > rank(b) {
			best[p.Spec.NodeName] = p
		}
	}
	for name, p := range best {
		nodes = append(nodes, Node{Name: name, Pod: p.Name, Absent: absent(p)})
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// rank prefers a pod that runs, then one that is not deleted.
func rank(p *corev1.Pod) (n int) {
	if absent(p) == "" {
		n += 2
	}
	if p.DeletionTimestamp == nil {
		n++
	}
	return n
}

// absent returns why no command can run in the container of manxd; empty if one can.
func absent(p *corev1.Pod) string {
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case s.Name != container:
		case s.State.Running != nil:
			return ""
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			return fmt.Sprintf("manxd does not run in pod %s: %s", p.Name, waiting(s.State.Waiting))
		case s.State.Terminated != nil:
			return fmt.Sprintf("manxd does not run in pod %s: it ended with exit code %d", p.Name,
				s.State.Terminated.ExitCode)
		}
	}
	return fmt.Sprintf("manxd does not run in pod %s: the pod is %s", p.Name, cmp.Or(p.Status.Phase, "new"))
}

func waiting(w *corev1.ContainerStateWaiting) string {
	if w.Message == "" {
		return w.Reason
	}
	return w.Reason + ": " + w.Message
}
