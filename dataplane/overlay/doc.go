// Package overlay lists the encapsulations of packets between nodes that this node makes, each with its device, its
// packets and its settings; it has no side effects.
package overlay
