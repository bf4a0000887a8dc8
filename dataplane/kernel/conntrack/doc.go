// Package conntrack deletes entries of the kernel's table of tracked connections.
package conntrack
