// Package plan computes the BGP state of a node from resource files instead of a datastore, and the difference of two
// such states.
package plan
