// Package vtep determines the VXLAN tunnel endpoints of the cluster's nodes; it has no side effects.
package vtep
