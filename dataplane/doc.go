// Package dataplane runs the agents that keep the state of this host as the datastore and BGP require: a Target for
// each kind of state.
package dataplane
