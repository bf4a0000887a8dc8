// Package node registers this host in the datastore: its name, addresses and AS number, and the objects that a cluster
// needs once.
package node
