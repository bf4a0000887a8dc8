// Package lab builds small data centres out of network namespaces: Manx nodes, BIRD top-of-rack routers and pods,
// for the end-to-end tests and the demo.
package lab
