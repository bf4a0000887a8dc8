// Package e2e runs manxd on a Kubernetes API that is away, refuses or lies.
package e2e
