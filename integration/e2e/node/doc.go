// Package node tests the life of one node: the start of manxd, its services, its pods, and its removal.
package node
