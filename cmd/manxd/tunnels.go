package main

import (
	"context"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
)

// tunnels maintains an address for each tunnel device of this node.
type tunnels struct {
	deps.Deps
	*node.Tunnels
}

func newTunnels(d deps.Deps, t *node.Tunnels) tunnels { return tunnels{d, t} }

func (t tunnels) Name() string { return "tunnels" }
func (t tunnels) Needs() part.Needs {
	return append(part.OwnOf(model.KindNode), part.AllOf(model.KindIPPool)...)
}
func (t tunnels) Run(ctx context.Context) error { return t.Tunnels.Run(ctx, t.Tables) }
