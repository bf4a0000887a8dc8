// Command manxctl reads and writes the objects of the cluster and shows the state of the local manxd with reasons.
package main
