package kubeapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/controllers/caliconode"
	"github.com/manxnet/manx/datastore/kubernetes/form"
)

// Behind names the agents that do not use projectcalico.org/v3; empty for none. A node of Manx reports its group in an
// annotation. calico-node and Typha have it in their environment, and their controllers know their pods.
func (a *API) Behind(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	calico := map[string]bool{} // nodes with a pod of calico-node
	for _, namespace := range caliconode.Places() {
		behind, err := a.oldDaemons(ctx, namespace)
		if behind == "" && err == nil {
			behind, err = a.oldTyphas(ctx, namespace)
		}
		if behind != "" || err != nil {
			return behind, err
		}
		err = a.hosts(ctx, namespace, "k8s-app in (calico-node,canal)", calico)
		if err != nil {
			return "", err
		}
	}
	manx := map[string]bool{}
	if err := a.hosts(ctx, "", "k8s-app=manx-node", manx); err != nil {
		return "", err
	}
	nodes, err := a.Core.Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", fmt.Errorf("nodes: %w", err)
	}
	behind, all := map[string]bool{}, 0
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if calico[n.Name] || !manx[n.Name] && !hasAddress(n) {
			continue
		}
		all++
		if n.Annotations[form.AnnotationGroup] != string(form.V3) {
			behind[n.Name] = true
		}
	}
	if len(behind) == 0 {
		return "", nil
	}
	return fmt.Sprintf("%d of %d nodes to report it: %s", len(behind), all, few(behind)), nil
}

// hasAddress reports whether an agent of Calico's kind has registered a node: its pods may be hosts' services.
func hasAddress(n *corev1.Node) bool {
	return n.Annotations["projectcalico.org/IPv4Address"] != "" || n.Annotations["projectcalico.org/IPv6Address"] != ""
}

// few joins the first few names.
func few(names map[string]bool) string {
	const most = 10
	list := slices.Sorted(maps.Keys(names))
	if n := len(list) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), n)
	}
	return strings.Join(list, ", ")
}

// hosts adds the nodes with running pods of a label that a DaemonSet has put into the host's network.
func (a *API) hosts(ctx context.Context, namespace, label string, to map[string]bool) error {
	pods, err := a.Core.Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: label, ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("pods with %s: %w", label, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		owner := metav1.GetControllerOf(p)
		if owner != nil && owner.Kind == "DaemonSet" && p.Spec.HostNetwork && p.Status.Phase == corev1.PodRunning {
			to[p.Spec.NodeName] = true
		}
	}
	return nil
}

// oldDaemons describes the pods of calico-node of a namespace that do not use the newer group.
func (a *API) oldDaemons(ctx context.Context, namespace string) (string, error) {
	d, err := a.Apps.DaemonSets(namespace).Get(ctx, "calico-node", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("daemonset %s/calico-node: %w", namespace, err)
	}
	switch s := d.Status; {
	case s.ObservedGeneration == d.Generation && s.DesiredNumberScheduled == 0 && s.NumberMisscheduled == 0:
		return "", nil
	case !namesNewer(d.Spec.Template.Spec):
		return unset("daemonset", namespace, "calico-node"), nil
	case !settled(d):
		return fmt.Sprintf("the pods of daemonset %s/calico-node to be updated and available", namespace), nil
	}
	return "", nil
}

// oldTyphas describes a Typha of a namespace that does not use the newer group.
func (a *API) oldTyphas(ctx context.Context, namespace string) (string, error) {
	list, err := a.Apps.Deployments(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", fmt.Errorf("deployments of namespace %s: %w", namespace, err)
	}
	for _, d := range list.Items {
		if d.Name == "calico-typha" && (d.Spec.Replicas == nil || *d.Spec.Replicas > 0) &&
			!namesNewer(d.Spec.Template.Spec) {
			return unset("deployment", namespace, d.Name), nil
		}
	}
	return "", nil
}

func unset(kind, namespace, name string) string {
	return fmt.Sprintf("CALICO_API_GROUP=%s in the environment of %s %s/%s", form.V3, kind, namespace, name)
}

// namesNewer reports whether a container has the newer group in its environment.
func namesNewer(p corev1.PodSpec) bool {
	return slices.ContainsFunc(p.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
			return e.Name == "CALICO_API_GROUP" && e.Value == string(form.V3)
		})
	})
}
