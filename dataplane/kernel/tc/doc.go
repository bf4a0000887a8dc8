// Package tc limits the bandwidth of interfaces with the kernel's traffic control: token bucket filters, and
// redirection of an interface's received packets (tc(8)).
package tc
