// Package link keeps the interface settings that routes and workloads need: the node's own devices, such as that for
// IPIP, with their addresses and MTU, sysctls, and the file with the MTU for the CNI plugin.
package link
