// Package session derives the state of each BGP session, and its cause, from the events on its connections and those of
// GoBGP.
package session
