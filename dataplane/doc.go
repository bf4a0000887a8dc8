// Package dataplane runs the agents that keep what is on this host, each kind by a Target, as the datastore and BGP
// want it.
package dataplane
