// Package owners follows which workload of the cluster has each address, and deletes the tracked connections of this
// host with an address that another workload has now.
package owners
