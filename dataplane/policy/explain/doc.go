// Package explain tells what becomes of the first packet of a connection between two ends of a cluster: which policies
// are asked about it, what each rule says and why, and which way it goes.
package explain
