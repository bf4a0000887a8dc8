// Package ipam hands out addresses from Calico IP pools by compare-and-swap on blocks, affinities and handles, in
// Calico's exact data layout.
package ipam
