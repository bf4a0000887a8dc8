package main

import (
	"testing"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore/node"
)

// A detection that failed is a notice until one succeeds.
func TestNoticesOfAddresses(t *testing.T) {
	a := &addresses{Deps: deps.Deps{Node: deps.Node{Name: "n1"}}, last: "none"}
	a.changed(node.Result{Warnings: []string{"no address is found"}})
	if list := a.Notices(); len(list) != 1 || list[0].Subject != "n1" || list[0].Text != "no address is found" {
		t.Errorf("notices are %v", list)
	}
	a.changed(node.Result{})
	if list := a.Notices(); len(list) != 0 {
		t.Errorf("notices after a detection that succeeded are %v", list)
	}
}
