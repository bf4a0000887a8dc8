package main

import (
	"cmp"
	"os"
	"strings"
)

// podNamespaceFile is the file with a pod's namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// kubernetesNamespace returns the configured namespace, else that of this daemon's pod, else kube-system.
func kubernetesNamespace(configured string) string {
	own, _ := os.ReadFile(podNamespaceFile)
	return cmp.Or(configured, strings.TrimSpace(string(own)), "kube-system")
}
