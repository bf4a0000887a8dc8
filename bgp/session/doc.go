// Package session derives the state of each BGP session, and its cause, from the events and log messages of GoBGP.
package session
