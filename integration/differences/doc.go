// Package differences holds, as a test, the list of the behaviours in which Manx differs from calico/node, shows each
// of them, and writes the list into the documentation.
package differences
