// Package route decides which routes this node should have, from the learned routes of BGP, the node's own blocks and
// its workloads, and keeps the kernel's routing tables that way.
//
// It has no driver (package driver): there may be a million routes. Their table is packed, without pointers and without
// a value for each route (decision 0012), it is read again when the kernel's events are in doubt rather than every so
// often, and its rows have calls of their own, which filter and follow them.
package route
