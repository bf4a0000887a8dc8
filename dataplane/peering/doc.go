// Package peering keeps the addresses of this node towards workloads that speak BGP with it, on the workloads'
// interfaces.
package peering
