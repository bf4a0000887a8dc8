// Package caliconode finds a calico-node that is active on a host: by its pod, or by the control socket of its BGP
// daemon.
package caliconode

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// podSelector selects the pods of calico-node, also as a part of Canal, by the label of its manifests and its operator.
// Every user who may create pods in a namespace may set the label, and the node: see Doubt.
const podSelector = "k8s-app in (calico-node,canal)"

// sockets are the control sockets of calico-node's BGP daemons.
var sockets = []string{"/var/run/calico/bird.ctl", "/var/run/calico/bird6.ctl"}

// Places returns the namespaces of Calico's installations, where only administrators make objects.
func Places() []string { return []string{"kube-system", "calico-system"} }

// Namespaces returns those where a pod may be one of calico-node: Places, own (that of Manx), and more, a list that is
// separated by commas. Tenants make no pods there.
func Namespaces(own, more string) []string {
	list := append(Places(), own)
	for name := range strings.SplitSeq(more, ",") {
		if name = strings.TrimSpace(name); name != "" {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Remedy is the advice for an operator of a node, of this name in Kubernetes, on which calico-node is active.
func Remedy(node string) string {
	return fmt.Sprintf("Keep it off this node: give its DaemonSet the nodeSelector manx.io/network=calico, that of "+
		"manx-node manx.io/network=manx, and switch this node over with `kubectl label node %s manx.io/network=manx "+
		"--overwrite`; on a host without Kubernetes end its service (docs/operations.md, \"Moving a node from "+
		"calico/node\")", node)
}

// Finder searches for a calico-node.
type Finder struct {
	Node       string                 // this host's name in Kubernetes
	Namespaces []string               // those where only administrators make pods
	Pods       typedcorev1.PodsGetter // nil: pods are not searched
	Sockets    []string               // of BGP daemons
	Own        types.UID              // of the pod that this process runs in; empty: in none
}

// NewFinder returns the Finder for this host, of this name in Kubernetes. It searches pods if kube, the settings of the
// Kubernetes API, is not nil and can be used. A pod counts as calico-node only in the given namespaces.
func NewFinder(node string, namespaces []string, kube *rest.Config) Finder {
	f := Finder{Node: node, Namespaces: namespaces, Sockets: sockets}
	if kube != nil {
		f.Own = podOf(kube.BearerTokenFile)
	}
	if kube == nil {
		return f
	}
	if client, err := typedcorev1.NewForConfig(kube); err == nil {
		f.Pods = client
	}
	return f
}

// Options select the pods of calico-node on a node, in the server's cache. For a list as of now, a server with an etcd
// of version 3.4 reads and decodes all pods of the cluster.
func Options(node string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: podSelector, ResourceVersion: "0",
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
}

// Find names the active program, such as "the pod kube-system/calico-node-x7k2p"; empty for none. The error explains
// why the pods are not known.
func (f Finder) Find(ctx context.Context) (string, error) {
	if name := answering(ctx, f.Sockets); name != "" {
		return name, nil
	}
	if f.Pods == nil {
		return "", nil
	}
	list, err := f.Pods.Pods("").List(ctx, Options(f.Node))
	if err != nil {
		return "", fmt.Errorf("pods with %s on node %s: %w", podSelector, f.Node, err)
	}
	for i := range list.Items {
		if p := &list.Items[i]; !f.Self(p) && f.Doubt(p) == "" {
			return Describe(p), nil
		}
	}
	return "", nil
}

// Self reports whether this process runs in a pod: that of a manifest of calico-node with the image of Manx has the
// label of calico-node.
func (f Finder) Self(p *corev1.Pod) bool { return f.Own != "" && p.UID == f.Own }

// podOf returns the pod that the kubelet has requested a token for; empty if the file has no such token.
func podOf(tokenFile string) types.UID {
	token, _ := os.ReadFile(tokenFile)
	_, rest, _ := strings.Cut(string(token), ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, _ := base64.RawURLEncoding.DecodeString(payload)
	var claims struct {
		Kubernetes struct {
			Pod struct{ UID types.UID }
		} `json:"kubernetes.io"`
	}
	_ = json.Unmarshal(text, &claims) // of another form: not a token of a pod
	return claims.Kubernetes.Pod.UID
}

// Describe names a pod in a sentence.
func Describe(p *corev1.Pod) string { return fmt.Sprintf("the pod %s/%s", p.Namespace, p.Name) }

// Doubt returns why a pod with the label is not taken for an active calico-node, empty if it is. A tenant can make none
// of the facts that count: a pod in a namespace of administrators, of a DaemonSet, in the host's network, that the
// kubelet reports as running.
func (f Finder) Doubt(p *corev1.Pod) string {
	owner := metav1.GetControllerOf(p)
	switch {
	case !slices.Contains(f.Namespaces, p.Namespace):
		return fmt.Sprintf("its namespace is none of Calico's (%s)", strings.Join(f.Namespaces, ", "))
	case owner == nil || owner.Kind != "DaemonSet":
		return "no DaemonSet has made it"
	case !p.Spec.HostNetwork:
		return "it does not use the host's network"
	case p.Status.Phase != corev1.PodRunning:
		return fmt.Sprintf("it does not run (phase %s)", p.Status.Phase)
	}
	return ""
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
