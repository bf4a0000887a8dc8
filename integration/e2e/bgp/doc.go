// Package bgp tests the sessions and routes of nodes with routers, reflectors and operators' actions.
package bgp
