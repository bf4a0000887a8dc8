// Package reconcile brings a target that others can change, such as a routing table, to a desired state and keeps it
// there, one object at a time.
package reconcile
