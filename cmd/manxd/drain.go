package main

import (
	"fmt"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/proto/server"
)

// workloadInterfaces begins the names of the host's side of workload interfaces.
const workloadInterfaces = "cali"

// drainNotice tells people that the node is not in service.
func drainNotice(name string, s node.DrainState) []server.Notice {
	if s.Phase == model.InService {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: name, Text: fmt.Sprintf("%s: %s", s.Phase, s.Reason)}}
}
