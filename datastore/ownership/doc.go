// Package ownership determines the addresses, blocks and originated prefixes of a node, which must not be learned from
// other speakers. It is pure.
package ownership
