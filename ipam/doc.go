// Package ipam assigns addresses of Calico IP pools by compare-and-swap on blocks, affinities and handles, in Calico's
// data layout.
package ipam
