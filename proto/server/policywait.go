package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// policyWaits counts the reports of CNI plugins.
type policyWaits struct {
	log                       *zap.Logger
	waits, timeouts, waitedMs atomic.Int64
}

// longestWait bounds a plausible report: a runtime gives up on a plugin long before.
const longestWait = time.Hour

// ReportPolicyWait implements manxv1.ManxServer.
func (w *policyWaits) ReportPolicyWait(
	_ context.Context, r *manxv1.ReportPolicyWaitRequest,
) (*manxv1.ReportPolicyWaitResponse, error) {
	if ms := r.GetWaitedMs(); ms < 0 || ms > longestWait.Milliseconds() {
		return nil, status.Errorf(codes.InvalidArgument, "waited_ms = %d: want 0 to %d", ms, longestWait.Milliseconds())
	}
	w.waits.Add(1)
	w.waitedMs.Add(r.GetWaitedMs())
	if r.GetTimedOut() {
		w.timeouts.Add(1)
		w.log.Warn("a workload was started before its policy and routes were in the kernel",
			zap.String("endpoint", r.GetEndpoint()), zap.Int64("waited_ms", r.GetWaitedMs()))
	}
	return &manxv1.ReportPolicyWaitResponse{}, nil
}

const (
	metricPolicyWaits        = "manx_cni_policy_waits_total"
	metricPolicyWaitSeconds  = "manx_cni_policy_wait_seconds_total"
	metricPolicyWaitTimeouts = "manx_cni_policy_wait_timeouts_total"
)

var policyWaitMetrics = describe([]description{
	{metricPolicyWaits, "Workloads whose start waited for policy and routes.", nil},
	{metricPolicyWaitSeconds, "Time that the start of workloads waited for policy and routes.", nil},
	{metricPolicyWaitTimeouts, "Workloads that were started before their policy and routes were in the kernel.", nil},
})

// Describe implements prometheus.Collector.
func (*policyWaits) Describe(out chan<- *prometheus.Desc) { policyWaitMetrics.Describe(out) }

// Collect implements prometheus.Collector.
func (w *policyWaits) Collect(out chan<- prometheus.Metric) {
	_, counter := policyWaitMetrics.send(out)
	counter(metricPolicyWaits, float64(w.waits.Load()))
	counter(metricPolicyWaitSeconds, float64(w.waitedMs.Load())/1000)
	counter(metricPolicyWaitTimeouts, float64(w.timeouts.Load()))
}

// PolicyWaited counts the wait of a workload whose start this process served. The log has its endpoint if the time ran
// out.
func (s *Server) PolicyWaited(endpoint string, waited time.Duration, timedOut bool) {
	_, _ = s.manx.ReportPolicyWait(context.Background(), &manxv1.ReportPolicyWaitRequest{Endpoint: endpoint,
		WaitedMs: waited.Milliseconds(), TimedOut: timedOut})
}
