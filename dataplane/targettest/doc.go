// Package targettest has a small target, for tests of agents and as an example: it keeps the entries by which a
// forwarding database finds the other nodes.
package targettest
