// Package owners follows which workload of the cluster has each address, and has this host forget connections with an
// address that another workload has now.
package owners
