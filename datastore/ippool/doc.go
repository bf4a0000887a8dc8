// Package ippool decides which IP pool an address is in, and how a packet to it reaches the node that has it. It is
// pure.
package ippool
