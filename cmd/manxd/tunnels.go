package main

import (
	"context"

	"github.com/manxnet/manx/datastore/model"
)

// tunnels maintains an address for each tunnel device of this node.
type tunnels struct{ *joined }

func newTunnels(j *joined) tunnels { return tunnels{j} }

func (t tunnels) Name() string                  { return "tunnels" }
func (t tunnels) Kinds() []model.Kind           { return []model.Kind{model.KindNode, model.KindIPPool} }
func (t tunnels) Run(ctx context.Context) error { return t.joined.tunnels.Run(ctx, t.tables) }
