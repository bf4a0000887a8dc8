// Package ownership decides what belongs to a node itself, and therefore must not be learned from other speakers: its
// addresses, the blocks that it has, and the prefixes that it originates. It is pure.
package ownership
