// Package gobgpinside has all that depends on the inside of GoBGP: the way by which its server gets connections,
// repairs of a peer's state machine, and the texts of its log. docs/gobgp.md lists them.
package gobgpinside
