// Package session says of each BGP session where it stands and why, from the events and log messages of GoBGP.
package session
