package main

import (
	"cmp"
	"os"
	"strings"
)

// podNamespaceFile is where Kubernetes tells a pod its namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// kubernetesNamespace returns where this daemon's own objects of Kubernetes are.
func (o options) kubernetesNamespace() string {
	own, _ := os.ReadFile(podNamespaceFile)
	return cmp.Or(o.namespace, strings.TrimSpace(string(own)), "kube-system")
}
