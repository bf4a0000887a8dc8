package main

import (
	"cmp"
	"context"
	"net"
	"os"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/cni/engine"
	"github.com/manxnet/manx/dataplane/endpointstatus"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// reportTimeout bounds the time that the report of a wait adds to it.
const reportTimeout = time.Second

// statusDir returns the folder of the status files of endpoints for a network.
func statusDir(c *cni.Config) string {
	return cmp.Or(c.EndpointStatusDir, endpointstatus.DefaultFolder)
}

// agentReports implements engine.Config.Agent: an agent writes files, or manxd is about to.
func agentReports(c *cni.Config) bool {
	_, err := os.Stat(statusDir(c))
	return err == nil || daemonRuns(c)
}

// connected implements engine.Config.Connected by the files of the agent, which is another process.
func connected(c *cni.Config, w engine.Container) (func(context.Context) error, error) {
	_, err := endpointstatus.FileName(w.Endpoint)
	return func(ctx context.Context) error {
		return endpointstatus.WaitForFile(ctx, statusDir(c), endpointstatus.Workload(w))
	}, err
}

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
