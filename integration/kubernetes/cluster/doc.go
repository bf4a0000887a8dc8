// Package cluster holds what a real cluster shows of Manx, step by step: the demo prints it and the tests demand it.
package cluster
