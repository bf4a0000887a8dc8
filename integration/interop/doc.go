// Package interop proves that a Manx node and routers of others understand each other.
package interop
