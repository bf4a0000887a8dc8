// Package link keeps what routes and workloads need of interfaces: the node's own devices, such as that for IPIP, with
// their addresses and MTU, sysctls, and the file that tells the CNI plugin the MTU.
package link
