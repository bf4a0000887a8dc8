// Package manxv1 has the messages and services of the control API, generated from its proto files, and calls that join
// the responses of a stream.
package manxv1

import (
	"context"
	"errors"
	"io"
)

// PeerRoutes calls ListPeerRoutes, and joins its responses.
func PeerRoutes(ctx context.Context, m ManxClient, r *ListPeerRoutesRequest) (*ListPeerRoutesResponse, error) {
	stream, err := m.ListPeerRoutes(ctx, r)
	if err != nil {
		return nil, err
	}
	all := &ListPeerRoutesResponse{}
	for {
		some, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all.Routes = append(all.Routes, some.GetRoutes()...)
	}
}
