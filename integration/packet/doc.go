// Package packet sends and captures raw frames at an interface of a network namespace, as root of a pod or a machine on
// the underlay can.
package packet
