// Package policy drives network policy, in the kernel of nodes and by packets of real sockets, as users and pods do.
package policy
