package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// daemonTimeout bounds a question to the local daemon, which answers from memory.
const daemonTimeout = 10 * time.Second

// noDaemonError says that nothing answers on the control socket.
type noDaemonError struct {
	socket string
	reason string
}

func (e *noDaemonError) Error() string {
	return fmt.Sprintf("manxd cannot be asked on %s: %s", e.socket, e.reason)
}

// biggestAnswer bounds what is read: 500,000 routes are some 150 MB.
const biggestAnswer = 1 << 30

// daemon asks the local manxd and translates its errors.
func (c *cli) daemon(ctx context.Context, ask func(context.Context, manxv1.ManxClient) error) error {
	return c.daemonFor(ctx, daemonTimeout, ask)
}

// daemonFor is daemon with another limit of time; 0 is none.
func (c *cli) daemonFor(ctx context.Context, limit time.Duration, ask func(context.Context, manxv1.ManxClient) error) error {
	if _, err := os.Stat(c.socket); errors.Is(err, fs.ErrNotExist) {
		return &noDaemonError{c.socket, "there is no such socket: is manxd running on this host? (another place: --socket)"}
	} else if err != nil {
		return &noDaemonError{c.socket, err.Error()}
	}
	conn, err := grpc.NewClient("passthrough:///unix:"+c.socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dialUnix),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(biggestAnswer)))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // the answer has been read
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return c.explain(ask(ctx, manxv1.NewManxClient(conn)))
}

func (c *cli) explain(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	switch {
	case st.Code() == codes.Unavailable && strings.Contains(st.Message(), "permission denied"):
		return &noDaemonError{c.socket, "permission denied: only root may"}
	case st.Code() == codes.Unavailable && strings.Contains(st.Message(), "connection refused"):
		return &noDaemonError{c.socket, "nobody listens there: manxd is not running"}
	case st.Code() == codes.Unavailable:
		return &noDaemonError{c.socket, st.Message()}
	case st.Code() == codes.DeadlineExceeded:
		return &noDaemonError{c.socket, fmt.Sprintf("no answer within %s", daemonTimeout)}
	}
	return errors.New(st.Message())
}
