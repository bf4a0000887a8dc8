package main

import (
	"context"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// takeover reports that another host has taken over the Node of this one.
type takeover struct {
	*joined
	*node.TakeoverWatch
}

func newTakeover(j *joined) *takeover {
	return &takeover{joined: j, TakeoverWatch: &node.TakeoverWatch{Config: j.config, Registered: j.registered,
		Host: node.System{}, Log: j.log.Named("node")}}
}

func (t *takeover) Name() string        { return "node-address" }
func (t *takeover) Kinds() []model.Kind { return []model.Kind{model.KindNode} }

// Run implements part.Part.
func (t *takeover) Run(ctx context.Context) error { return t.TakeoverWatch.Run(ctx, t.tables) }

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
