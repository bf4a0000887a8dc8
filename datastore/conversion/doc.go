// Package conversion converts Kubernetes' objects to Calico's, as pure functions.
package conversion
