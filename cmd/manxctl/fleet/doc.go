// Package fleet runs manxctl in the pods of manx-node, on many nodes of a cluster at a time, with the rights of the
// caller's kubeconfig. All that a node returns is untrusted: it is bounded here, and Clean makes it printable.
package fleet
