// Package overuse limits workloads that fill the kernel's table of tracked connections, which all workloads of a host
// share, and reports those that send too many fragments.
package overuse
