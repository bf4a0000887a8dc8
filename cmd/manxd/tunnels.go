package main

import (
	"context"
	"slices"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// tunnels maintains an address for each tunnel device of this node.
type tunnels struct {
	deps.Deps
	*node.Tunnels
}

func newTunnels(d deps.Deps, t *node.Tunnels) tunnels { return tunnels{d, t} }

func (t tunnels) Name() string { return "tunnels" }
func (t tunnels) Needs() part.Needs {
	return part.AllOf(model.KindNode, model.KindIPPool, model.KindFelixConfiguration)
}
func (t tunnels) Run(ctx context.Context) error { return t.Tunnels.Run(ctx, t.Tables) }

// Notices implements server.Noticer.
func (t tunnels) Notices() []server.Notice { return overlayNotices(t.Tables.Snapshot(), t.Deps.Node) }

// overlayNotices reports settings that leave pools without their tunnels, or nodes without each other's packets.
func overlayNotices(r model.Reader, n deps.Node) (list []server.Notice) {
	felix := felixconfig.Merge(r, n.Name, n.Felix)
	for _, c := range slices.Concat(overlay.Conflicts(&felix, ippool.Read(r)), overlay.Mismatches(r, n.Name, &felix)) {
		list = append(list, server.Notice{Topic: "dataplane", Subject: c.Setting, Text: c.Text})
	}
	return list
}
