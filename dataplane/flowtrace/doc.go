// Package flowtrace puts the steps of the kernel's trace together to packets, and compares how a packet fared with how
// that was explained.
package flowtrace
