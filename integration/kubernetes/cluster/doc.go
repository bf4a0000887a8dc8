// Package cluster holds the properties that a real cluster shows of Manx, step by step: the demo prints them and the
// tests require them.
package cluster
