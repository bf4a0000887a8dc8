// Package datastore tests the programs with a real Kubernetes API as their datastore.
package datastore
