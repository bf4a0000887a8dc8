// Package dataplane runs the agents that keep this host's state, each kind by a Target, as the datastore and BGP
// require.
package dataplane
