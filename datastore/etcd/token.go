package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// forgetToken returns a gRPC interceptor below the client's own. The client sends its token along with the request for
// a new one, and etcd 3.4 refuses that request, too, if the token is invalid, as after a restart of etcd. The client
// then requests another one, and so on without end, each request inside the one before. This interceptor reports to the
// client that authentication is off, so that it forgets the token; the next request is refused because it names no
// user, and the client authenticates again.
func forgetToken(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	err := call(ctx, method, req, reply, conn, options...)
	if method == etcdserverpb.Auth_Authenticate_FullMethodName &&
		errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken) {
		return rpctypes.ErrGRPCAuthNotEnabled
	}
	return err
}
