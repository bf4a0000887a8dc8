// Package kubernetes stores the Calico data model in the Kubernetes API: in custom resources, and in Nodes, Pods,
// Namespaces and ServiceAccounts.
package kubernetes
