// Package cni is the CNI plugin itself: what a runtime asks for, the wiring of a container, and the questions that the
// plugin has for whoever knows the datastore. It links neither a datastore client nor Kubernetes' types, so that the
// program starts fast.
package cni
