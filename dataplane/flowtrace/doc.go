// Package flowtrace assembles the steps of the kernel's trace into packets, and compares the fate of a packet with its
// explanation.
package flowtrace
