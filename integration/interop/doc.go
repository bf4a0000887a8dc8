// Package interop tests a Manx node with routers of other implementations.
package interop
