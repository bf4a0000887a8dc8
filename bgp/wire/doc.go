// Package wire owns the TCP connections of BGP sessions. It listens, connects, finishes the OPEN exchange, solves
// collisions, and hands each established connection over as a net.Conn whose messages it checks in both directions.
package wire
