// Package conversion turns Kubernetes' objects into Calico's, as pure functions.
package conversion
