// Package proxyneighbour lets hosts on the subnets of this host reach its workloads there without a route: the kernel
// answers ARP and neighbour solicitations for their addresses (proxy ARP, RFC 1027).
package proxyneighbour
