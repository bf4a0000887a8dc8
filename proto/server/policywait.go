package server

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// policyWaits counts what CNI plugins have reported.
type policyWaits struct {
	waits, timeouts, waitedMs atomic.Int64
}

// longestWait bounds what is believed: a runtime gives up on a plugin long before.
const longestWait = time.Hour

// ReportPolicyWait implements manxv1.ManxServer.
func (s *Server) ReportPolicyWait(_ context.Context, r *manxv1.ReportPolicyWaitRequest) (*manxv1.ReportPolicyWaitResponse, error) {
	if ms := r.GetWaitedMs(); ms < 0 || ms > longestWait.Milliseconds() {
		return nil, status.Errorf(codes.InvalidArgument, "waited_ms = %d: want 0 to %d", ms, longestWait.Milliseconds())
	}
	s.policyWaits.waits.Add(1)
	s.policyWaits.waitedMs.Add(r.GetWaitedMs())
	if r.GetTimedOut() {
		s.policyWaits.timeouts.Add(1)
		s.config.Log.Warn("a workload was started before its policy and routes were in the kernel",
			zap.String("endpoint", r.GetEndpoint()), zap.Int64("waited_ms", r.GetWaitedMs()))
	}
	return &manxv1.ReportPolicyWaitResponse{}, nil
}
