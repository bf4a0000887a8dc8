// Package felixconfig finds the FelixConfigurations that apply to a node, reads the parameters of Felix that its host
// sets, and merges the settings of both.
package felixconfig
