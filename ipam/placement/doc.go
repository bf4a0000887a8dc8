// Package placement determines on which node the addresses of IPAM's blocks are; it is pure.
package placement
