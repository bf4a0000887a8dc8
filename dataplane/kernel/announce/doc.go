// Package announce hears that a machine behind an interface announces its addresses to the network.
package announce
