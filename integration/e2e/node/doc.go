// Package node tests the life of one node: how manxd starts, its services, its pods, and how it goes.
package node
