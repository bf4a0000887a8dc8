// Package route decides which routes this node should have, from the learned routes of BGP, the node's own blocks and
// its workloads, and keeps the kernel's routing tables that way.
package route
