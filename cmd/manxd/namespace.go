package main

import (
	"cmp"
	"os"
	"strings"
)

// podNamespaceFile is the file with a pod's namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// kubernetesNamespace returns the namespace of this daemon's own Kubernetes objects.
func (o options) kubernetesNamespace() string {
	own, _ := os.ReadFile(podNamespaceFile)
	return cmp.Or(o.namespace, strings.TrimSpace(string(own)), "kube-system")
}
