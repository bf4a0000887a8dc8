// Package bfd detects within milliseconds that the path to a peer is gone (RFC 5880, 5881 and 5883, asynchronous mode).
package bfd
