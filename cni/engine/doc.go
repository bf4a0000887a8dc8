// Package engine serves the requests of the CNI plugin from a datastore: addresses, endpoints, and the state of policy.
// It runs in manxd, behind its socket, and in the plugin itself while manxd does not run.
package engine
