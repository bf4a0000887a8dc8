// Package tc limits the bandwidth of interfaces with the kernel's traffic control: token bucket filters, and
// redirection of what an interface receives (tc(8)).
package tc
