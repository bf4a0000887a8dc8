// Package kerneltest has kernels in memory for tests: they count calls, refuse the same requests as the kernel, and
// fail on demand.
package kerneltest
