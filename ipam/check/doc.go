// Package check compares the records of IPAM with the workloads, nodes and services that use addresses, and repairs
// them.
package check
