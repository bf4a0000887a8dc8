package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// leaderPause is the time between two tries without a leader: an election lasts a second or two.
const leaderPause = 100 * time.Millisecond

// askAnother is a gRPC interceptor that asks the next server, until ctx ends, when one has no leader: it is cut off
// from the others, or they elect. Such a server refuses a request before it does anything; without the demand for a
// leader it would keep the request for seconds.
func askAnother(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	ctx = clientv3.WithRequireLeader(ctx)
	for {
		err := call(ctx, method, req, reply, conn, options...)
		if !errors.Is(rpctypes.Error(err), rpctypes.ErrNoLeader) {
			return err
		}
		select {
		case <-time.After(leaderPause):
		case <-ctx.Done():
			return err
		}
	}
}
