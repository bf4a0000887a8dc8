// Package retry decides when an action that failed is tried again: after pauses that grow with the failures in a row,
// for one action or for each of many objects.
package retry
