// Package beside finds an active calico-node on this host, waits for its end and reports it: two programs must not
// program one node.
package beside

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// podSelector selects the pods of calico-node by the label of its manifests and its operator. Every user who may create
// pods in a namespace may set the label, and the node: see doubt.
const podSelector = "k8s-app=calico-node"

// sockets are the control sockets of calico-node's BGP daemons.
var sockets = []string{"/var/run/calico/bird.ctl", "/var/run/calico/bird6.ctl"}

// Finder searches for a calico-node.
type Finder struct {
	node       string                 // this host's name in Kubernetes
	namespaces []string               // those where only administrators make pods
	pods       typedcorev1.PodsGetter // nil: pods are not searched
	sockets    []string               // of BGP daemons
}

// NewFinder returns the Finder for this host, of this name in Kubernetes. It searches pods if kube, the settings of the
// Kubernetes API, is not nil and can be used. A pod counts as calico-node only in the given namespaces.
func NewFinder(node string, namespaces []string, kube *rest.Config) Finder {
	f := Finder{node: node, namespaces: namespaces, sockets: sockets}
	if kube == nil {
		return f
	}
	if client, err := typedcorev1.NewForConfig(kube); err == nil {
		f.pods = client
	}
	return f
}

// options select the pods of calico-node on a node, in the server's cache. For a list as of now, a server with an etcd
// of version 3.4 reads and decodes all pods of the cluster.
func options(node string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: podSelector, ResourceVersion: "0",
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
}

// find names the active program, such as "the pod kube-system/calico-node-x7k2p"; empty for none. The error explains
// why the pods are not known.
func (f Finder) find(ctx context.Context) (string, error) {
	if name := answering(ctx, f.sockets); name != "" {
		return name, nil
	}
	if f.pods == nil {
		return "", nil
	}
	list, err := f.pods.Pods("").List(ctx, options(f.node))
	if err != nil {
		return "", fmt.Errorf("pods with %s on node %s: %w", podSelector, f.node, err)
	}
	for i := range list.Items {
		if p := &list.Items[i]; f.doubt(p) == "" {
			return describe(p), nil
		}
	}
	return "", nil
}

func describe(p *corev1.Pod) string { return fmt.Sprintf("the pod %s/%s", p.Namespace, p.Name) }

// doubt returns why a pod with the label is not taken for an active calico-node, empty if it is. A tenant can make none
// of the facts that count: a pod in a namespace of administrators, of a DaemonSet, in the host's network, that the
// kubelet reports as running.
func (f Finder) doubt(p *corev1.Pod) string {
	owner := metav1.GetControllerOf(p)
	switch {
	case !slices.Contains(f.namespaces, p.Namespace):
		return fmt.Sprintf("its namespace is none of Calico's (%s)", strings.Join(f.namespaces, ", "))
	case owner == nil || owner.Kind != "DaemonSet":
		return "no DaemonSet has made it"
	case !p.Spec.HostNetwork:
		return "it does not use the host's network"
	case p.Status.Phase != corev1.PodRunning:
		return fmt.Sprintf("it does not run (phase %s)", p.Status.Phase)
	}
	return ""
}

// ended reports whether a pod does not run any more.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// BGPDaemon names an active BGP daemon of calico-node on this host; empty for none. Its sockets may be open to root
// alone.
func BGPDaemon(ctx context.Context) string { return answering(ctx, sockets) }

// answering names the BGP daemon of the first socket that has one; empty for none.
func answering(ctx context.Context, sockets []string) string {
	for _, path := range sockets {
		if greets(ctx, path) {
			return "the BGP daemon behind " + path
		}
	}
	return ""
}

const (
	socketTimeout = time.Second
	maxGreeting   = 256
)

// greets reports whether a BIRD, and not a daemon of Manx in its place, greets at a socket. A killed daemon leaves the
// file of its socket.
func greets(ctx context.Context, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, socketTimeout)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return false
	}
	defer c.Close() //nolint:errcheck // only read
	_ = c.SetDeadline(time.Now().Add(socketTimeout))
	greeting, err := bufio.NewReaderSize(c, maxGreeting).ReadSlice('\n')
	text := strings.ToLower(string(greeting))
	return err == nil && strings.Contains(text, "bird") && !strings.Contains(text, "manx")
}
