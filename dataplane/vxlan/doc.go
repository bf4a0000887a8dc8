// Package vxlan keeps the entries of the node's VXLAN devices for the other nodes of the cluster: for each one a
// neighbour and an entry of the forwarding database (FDB).
package vxlan
