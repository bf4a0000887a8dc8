// Package kernel reads and changes the routes, links, addresses and sysctls of a network namespace as plain values
// (Conn), and watches changes by others. The folders in it do the same for the rest of the kernel's network.
package kernel
