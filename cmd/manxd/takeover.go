package main

import (
	"context"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// takeover reports that another host has taken over the Node of this one.
type takeover struct {
	deps.Deps
	*node.TakeoverWatch
}

func newTakeover(d deps.Deps, m *membership) *takeover {
	return &takeover{Deps: d, TakeoverWatch: &node.TakeoverWatch{Config: m.config, Registered: m.registered,
		Host: node.System{}, Log: d.Log.Named("node")}}
}

func (t *takeover) Name() string      { return "node-address" }
func (t *takeover) Needs() part.Needs { return part.AllOf(model.KindNode) }

// Run implements part.Part.
func (t *takeover) Run(ctx context.Context) error { return t.TakeoverWatch.Run(ctx, t.Tables) }

// Checks implements server.Checker: other nodes' packets for this node go elsewhere.
func (t *takeover) Checks() []server.Check {
	if text := t.Found().String(); text != "" {
		return []server.Check{{Name: t.Name(), Reason: text}}
	}
	return nil
}

// Notices implements server.Noticer.
func (t *takeover) Notices() []server.Notice {
	found := t.Found()
	text := found.String()
	if text == "" {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: "Node/" + found.Node, Text: text, Since: found.Since}}
}
