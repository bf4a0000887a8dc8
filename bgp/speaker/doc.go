// Package speaker runs the sessions and routes that package bgp decides on, on an embedded GoBGP server.
package speaker
