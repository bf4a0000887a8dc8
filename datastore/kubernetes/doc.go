// Package kubernetes turns Kubernetes' objects into Calico's, as pure functions.
package kubernetes
