// Package kubernetes keeps the Calico data model in the Kubernetes API: in custom resources, and in what Nodes, Pods,
// Namespaces and ServiceAccounts say.
package kubernetes
