// Package kerneltest has kernels in memory for tests: they count calls, refuse what the kernel refuses, and fail on
// demand.
package kerneltest
