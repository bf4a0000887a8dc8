package node

import (
	"context"
	"testing"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/etcd/etcdtest"
	"github.com/manxnet/manx/datastore/model"
)

// nodesRead counts how often all Nodes are read.
type nodesRead struct {
	datastore.Store
	times int
}

func (s *nodesRead) List(ctx context.Context, k model.Kind, namespace string) ([]*model.Object, int64, error) {
	if k == model.KindNode {
		s.times++
	}
	return s.Store.List(ctx, k, namespace)
}

// All Nodes are read to compare a new address of this node with theirs, and again only for a pool that is to be made. A
// node that keeps its address does not read them: neither when it starts nor when it detects its address again.
func TestNodesAreReadOnlyWhereTheyDecide(t *testing.T) {
	store := &nodesRead{Store: etcdtest.Start(t).Store(t)}
	read := func(what string, name string, addresses string, want int) {
		t.Helper()
		store.times = 0
		mustRegister(t, store, named(name), &fixedHost{interfaces: interfaces(addresses)})
		if store.times != want {
			t.Errorf("%s: all Nodes were read %d times, want %d", what, store.times, want)
		}
	}
	read("the first node, which makes pools of both families", "n1", "eth0 10.0.0.1/24", 3)
	read("another node, whose address may be taken", "n2", "eth0 10.0.0.2/24", 1)
	read("a restart with the address of the Node", "n2", "eth0 10.0.0.2/24", 0)
	read("a restart with another address, which may be taken", "n2", "eth0 10.0.0.3/24", 1)
}
