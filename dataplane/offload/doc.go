// Package offload finds out whether packets get to the other nodes through VXLAN whose checksums are left to the
// hardware, and has a device compute them itself where they do not.
package offload
