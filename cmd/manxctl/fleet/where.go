package fleet

import (
	"context"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NodeOf returns the node of an end of "manxctl explain": of a pod by name or address, or the node itself. It is empty
// for an end without a node.
func (c *Cluster) NodeOf(ctx context.Context, end string) (string, error) {
	kind, rest, _ := strings.Cut(end, "/")
	switch kind {
	case "node":
		return rest, nil
	case "pod":
		end = rest
	case "wep", "hep", "svc", "service":
		return "", nil
	}
	if namespace, name, ok := strings.Cut(end, "/"); ok {
		var p corev1.Pod
		err := decode(c.api.Get().Resource("pods").Namespace(namespace).Name(name).Do(ctx), &p)
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return p.Spec.NodeName, err
	}
	field := "metadata.name=" + end
	if a, err := netip.ParseAddr(end); err == nil {
		field = "status.podIP=" + a.String()
	}
	pods, err := c.pods(ctx, "", "", field)
	if err != nil || len(pods) != 1 { // explain itself names the pods between which the user has to choose
		return "", err
	}
	return pods[0].Spec.NodeName, nil
}
