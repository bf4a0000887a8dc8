package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// daemonTimeout bounds a request to the daemon, which answers from memory.
const daemonTimeout = 10 * time.Second

// routesTimeout bounds a request for routes, of which there may be a million.
const routesTimeout = time.Minute

// noDaemonError reports that no daemon answers.
type noDaemonError struct {
	address string // the control socket, or HOST:PORT
	reason  string
}

func (e *noDaemonError) Error() string {
	return fmt.Sprintf("manxd cannot be reached at %s: %s", e.address, e.reason)
}

// biggestAnswer bounds the size of a response: 500,000 routes are some 150 MB.
const biggestAnswer = 1 << 30

// daemon makes a request to the local manxd, or that of --server, and converts its errors.
func (c *cli) daemon(ctx context.Context, request func(context.Context, manxv1.ManxClient) error) error {
	return c.daemonFor(ctx, daemonTimeout, request)
}

// daemonFor is daemon with another timeout; 0 is none.
func (c *cli) daemonFor(
	ctx context.Context, limit time.Duration, request func(context.Context, manxv1.ManxClient) error,
) error {
	return c.call(ctx, limit, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return request(ctx, manxv1.NewManxClient(conn))
	})
}

// call makes calls of any service of the daemon.
func (c *cli) call(
	ctx context.Context, limit time.Duration, request func(context.Context, grpc.ClientConnInterface) error,
) error {
	remote, err := c.remote()
	if err != nil {
		return err
	}
	conn, err := c.connect(remote)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the answer has been read
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return c.explain(remote, limit, request(ctx, conn))
}

// connect opens a connection to the local daemon, or to a remote one.
func (c *cli) connect(remote *serverFlags) (*grpc.ClientConn, error) {
	bounds := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(biggestAnswer))
	if remote != nil {
		options, err := remote.options()
		if err != nil {
			return nil, err
		}
		return grpc.NewClient("passthrough:///"+remote.address, append(options, bounds)...)
	}
	if c.plugin && !c.socketFlag.Changed {
		return nil, usagef("kubectl manx does not run this command on nodes: use \"kubectl exec\" into the pod of " +
			"manx-node on the node, or name a daemon with --socket or --server")
	}
	if _, err := os.Stat(c.socket); errors.Is(err, fs.ErrNotExist) && runtime.GOOS != "linux" {
		return nil, &noDaemonError{c.socket, "there is no such socket: manxd runs on Linux alone; name its host with " +
			"--server, or a forwarded socket with --socket"}
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil, &noDaemonError{c.socket, "there is no such socket: is manxd running on this host? (another " +
			"place: --socket; another host: --server)"}
	} else if err != nil {
		return nil, &noDaemonError{c.socket, err.Error()}
	}
	return grpc.NewClient("passthrough:///unix:"+c.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dialUnix), bounds)
}

func (c *cli) explain(remote *serverFlags, limit time.Duration, err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	address := c.socket
	if remote != nil {
		address = remote.address
	}
	switch {
	case st.Code() == codes.DeadlineExceeded:
		return &noDaemonError{address, fmt.Sprintf("no answer within %s", limit)}
	case st.Code() == codes.Unavailable && remote != nil:
		return &noDaemonError{address, remote.explain(st.Message())}
	case st.Code() == codes.Unavailable && strings.Contains(st.Message(), "permission denied"):
		return &noDaemonError{address, "permission denied: only root may"}
	case st.Code() == codes.Unavailable && strings.Contains(st.Message(), "connection refused"):
		return &noDaemonError{address, "no program listens there: manxd is not running"}
	case st.Code() == codes.Unavailable:
		return &noDaemonError{address, st.Message()}
	}
	return errors.New(st.Message())
}
