package etcd

import (
	"context"
	"errors"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

func TestForgetToken(t *testing.T) {
	const login, read = "/etcdserverpb.Auth/Authenticate", "/etcdserverpb.KV/Range"
	for _, c := range []struct {
		method         string
		returned, want error
	}{
		{login, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthNotEnabled},
		{login, rpctypes.ErrGRPCAuthFailed, rpctypes.ErrGRPCAuthFailed},
		{login, nil, nil},
		{read, rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCInvalidAuthToken},
	} {
		call := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			return c.returned
		}
		if got := forgetToken(t.Context(), c.method, nil, nil, nil, call); !errors.Is(got, c.want) {
			t.Errorf("%s returns %v: the client gets %v, want %v", c.method, c.returned, got, c.want)
		}
	}
}
