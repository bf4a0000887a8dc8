// Package bgp decides which BGP sessions and routes a node should have; it has no side effects.
package bgp
