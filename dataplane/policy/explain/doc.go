// Package explain evaluates the first packet of a connection between two ends of a cluster: which policies
// apply to it, the result of each rule with its reason, and its route.
package explain
