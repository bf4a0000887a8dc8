// Package bgp decides which BGP sessions and routes a node should have and runs them on an embedded GoBGP speaker.
package bgp
