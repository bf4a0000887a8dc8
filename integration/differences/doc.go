// Package differences has the list of the behaviours in which Manx differs from calico/node, tests each of them, and
// writes the list into the documentation.
package differences
