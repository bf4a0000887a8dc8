// Package link keeps what routes and workloads need of interfaces: the IPIP tunnel device, its address and MTU, sysctls,
// and the file that tells the CNI plugin the MTU.
package link
