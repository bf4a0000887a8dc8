// Package node drives the life of one node: how manxd starts, what it serves, its pods, and how it goes.
package node
