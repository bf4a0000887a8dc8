// Package ippool selects the IP pool of an address, and the encapsulation of packets to the node that has the address.
// It is pure.
package ippool
