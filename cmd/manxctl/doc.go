// Command manxctl reads and writes the objects of the cluster and asks the local manxd what it does and why.
package main
