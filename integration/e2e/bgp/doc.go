// Package bgp drives the sessions and routes of nodes, as routers, reflectors and operators do.
package bgp
