// Package felixconfig finds the FelixConfigurations that apply to a node and merges their settings.
package felixconfig
