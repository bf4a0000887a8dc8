// Package moves keeps the phases of the virtual machines that move from and to this host, and hears those that arrive.
package moves
