// Package hostlocal moves the addresses that the CNI plugin host-local has assigned on a node to IPAM: the running
// containers keep them.
package hostlocal
