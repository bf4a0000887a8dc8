// Package lab runs Kubernetes clusters on this machine: a control plane and nodes with real kubelets and containerd,
// each in its own namespaces, in a rack of package integration/lab with its BIRD router.
package lab
