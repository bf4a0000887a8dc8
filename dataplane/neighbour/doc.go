// Package neighbour keeps those entries of the kernel's neighbour tables that traffic of this node needs. A table is
// one for all network namespaces of a host, and a workload can fill it; the kernel never collects the entries kept
// here.
package neighbour
