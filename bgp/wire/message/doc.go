// Package message frames BGP messages, and checks, changes and records UPDATEs as bytes: received ones by RFC 7606,
// sent ones by the routes that the peer has. It has no connections.
package message
