package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/manxnet/manx/cmd/manxctl/fleet"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// statesHere asks the local manxd, or that of --server, which knows its own node alone.
type statesHere struct{ *cli }

func (s statesHere) status(ctx context.Context, node string) fleet.Answer {
	a := fleet.Answer{Node: fleet.Node{Name: node}}
	status, peers, notices, err := s.queryStatus(ctx)
	if a.Err = ofNode(status.GetNode(), node, err); a.Err != nil {
		return a
	}
	if len(unhealthy(status)) > 0 {
		a.Code = exitUnhealthy
	}
	a.Stdout, a.Err = json.Marshal(statusData(status, peers, notices))
	return a
}

func (s statesHere) endpoints(ctx context.Context, node string) fleet.Answer {
	a := fleet.Answer{Node: fleet.Node{Name: node}}
	a.Err = s.daemon(ctx, func(ctx context.Context, m manxv1.ManxClient) error {
		status, err := m.GetStatus(ctx, &manxv1.GetStatusRequest{})
		if err := ofNode(status.GetNode(), node, err); err != nil {
			return err
		}
		list, err := m.ListEndpoints(ctx, &manxv1.ListEndpointsRequest{})
		if err == nil {
			a.Stdout, err = json.Marshal(view(list))
		}
		return err
	})
	return a
}

// ofNode refuses the answer of another node.
func ofNode(answered, wanted string, err error) error {
	if err == nil && answered != wanted {
		return fmt.Errorf("manxd here is that of node %s: run this on node %s", answered, wanted)
	}
	return err
}
