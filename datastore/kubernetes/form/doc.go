// Package form knows how each kind looks in the Kubernetes API: Calico's custom resources of both groups, Nodes and
// Pods whose annotations hold what Calico adds, and what Calico makes of Kubernetes' own objects. It is pure.
package form
