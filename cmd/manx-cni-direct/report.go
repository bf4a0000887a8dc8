package main

import (
	"context"
	"net"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/manxnet/manx/cni"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// reportTimeout bounds the time that the report of a wait adds to it.
const reportTimeout = time.Second

// daemonRuns reports whether manxd listens on its control socket.
func daemonRuns(c *cni.Config) bool {
	conn, err := net.DialTimeout("unix", c.ManxdSocket, reportTimeout)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// reportWait reports waits to the daemon, whose metrics outlive this process. It ignores a missing daemon.
func reportWait(log *zap.Logger) func(context.Context, *cni.Config, string, time.Duration, bool) {
	return func(ctx context.Context, c *cni.Config, endpoint string, waited time.Duration, timedOut bool) {
		ctx, cancel := context.WithTimeout(ctx, reportTimeout)
		defer cancel()
		conn, err := grpc.NewClient("unix:"+c.ManxdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			log.Debug("the wait is not reported", zap.Error(err))
			return
		}
		defer conn.Close() //nolint:errcheck // nothing is written any more
		_, err = manxv1.NewManxClient(conn).ReportPolicyWait(ctx, &manxv1.ReportPolicyWaitRequest{
			Endpoint: endpoint, WaitedMs: waited.Milliseconds(), TimedOut: timedOut,
		})
		if err != nil {
			log.Debug("the wait is not reported", zap.Error(err))
		}
	}
}
