// Package wireguard encrypts packets to other nodes: it keeps the keys, the peers, the routes and the rules of this
// node's WireGuard devices as desired, and reports for each node whether packets to it are encrypted.
package wireguard
