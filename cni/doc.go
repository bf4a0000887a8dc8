// Package cni is the CNI plugin: the commands of the runtime, the wiring of a container, and the protocol between the
// plugin and manxd, which has the datastore. It links neither a datastore client nor Kubernetes' types, so that the
// program starts fast.
package cni
