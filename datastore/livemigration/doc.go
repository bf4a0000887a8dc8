// Package livemigration determines which virtual machines of KubeVirt move from and to a node, and how far each move
// has come. It is pure.
package livemigration
