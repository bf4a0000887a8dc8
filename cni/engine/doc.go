// Package engine answers the questions of the CNI plugin with a datastore: addresses, endpoints, and whether policy is
// in force. manxd runs it behind its socket, and the plugin itself while there is no manxd.
package engine
