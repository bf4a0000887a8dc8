// Package cryptokey determines the WireGuard peers of a node and the addresses of each (cryptokey routing); it has no
// side effects.
package cryptokey
