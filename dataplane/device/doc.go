// Package device keeps the node's own devices, those of its overlays: that they exist and are up, their MTU and their
// addresses.
package device
