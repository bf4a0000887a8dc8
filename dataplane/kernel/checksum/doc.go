// Package checksum probes whether packets reach other hosts with the checksum of UDP that the hardware computes, and
// with one that the kernel computes (udp(7)).
package checksum
