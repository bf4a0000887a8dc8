// Package netnslock lets one process at a time act upon a network namespace.
package netnslock
