package main

import "fmt"

// placement has the names of the nodes. Reachability must not depend on it.
type placement []string

func place(nodes int) placement {
	p := make(placement, nodes)
	for i := range p {
		p[i] = fmt.Sprintf("node%d", i+1)
	}
	return p
}

// index returns the number of the node with all pods of a namespace.
func (p placement) index(namespace string) int {
	sum := 0
	for _, b := range []byte(namespace) {
		sum += int(b)
	}
	return sum % len(p)
}

func (p placement) node(namespace string) string { return p[p.index(namespace)] }
