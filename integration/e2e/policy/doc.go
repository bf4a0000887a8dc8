// Package policy tests network policy in the kernel of nodes, with packets of real sockets.
package policy
