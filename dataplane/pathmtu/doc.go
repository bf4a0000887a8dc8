// Package pathmtu measures the size of the largest packet that gets to each other node of the cluster.
package pathmtu
