package main

import (
	"context"
	"fmt"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// drain takes this node out of service, and back, according to its Node.
type drain struct {
	*node.Drainer
	j *joined
}

func newDrain(j *joined) *drain {
	return &drain{j: j, Drainer: &node.Drainer{Store: j.store, Node: j.name, Log: j.log.Named("drain"),
		Packets: func() (uint64, error) { return j.kernel.SentPackets(workloadInterfaces) }}}
}

func (d *drain) Name() string                  { return "drain" }
func (d *drain) Kinds() []model.Kind           { return []model.Kind{model.KindNode} }
func (d *drain) Notices() []server.Notice      { return drainNotice(d.j.name, d.State()) }
func (d *drain) Run(ctx context.Context) error { return d.Drainer.Run(ctx, d.j.tables) }

// workloadInterfaces is the prefix of workloads' host interfaces.
const workloadInterfaces = "cali"

// drainNotice reports that the node is not in service.
func drainNotice(name string, s node.DrainState) []server.Notice {
	if s.Phase == model.InService {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: name, Text: fmt.Sprintf("%s: %s", s.Phase, s.Reason)}}
}
