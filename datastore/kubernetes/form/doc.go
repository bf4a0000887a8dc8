// Package form converts each kind from and to its form in the Kubernetes API: Calico's custom resources of both groups,
// Nodes and Pods with Calico's annotations, and objects that Calico derives from Kubernetes' own. It is pure.
package form
