// Package cluster checks the properties of Manx in a real cluster, step by step: the demo prints them and the tests
// require them.
package cluster
