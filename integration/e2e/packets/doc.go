// Package packets tests nodes against an attacker who is root in a pod, or on a machine of the underlay, and sends any
// packet.
package packets
