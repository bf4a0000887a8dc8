package server

import (
	"strings"
	"testing"

	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

func TestWaitsForPolicyAreCounted(t *testing.T) {
	r := newRig(t)
	get := r.web()
	report := func(waited int64, timedOut bool) error {
		_, err := r.client.ReportPolicyWait(r.context(), &manxv1.ReportPolicyWaitRequest{
			Endpoint: "shop/web", WaitedMs: waited, TimedOut: timedOut})
		return err
	}
	expect := func(lines ...string) {
		t.Helper()
		_, body := get("/metrics")
		for _, line := range lines {
			if !strings.Contains(body, "\n"+line+"\n") {
				t.Errorf("lacks %s", line)
			}
		}
	}
	expect("manx_cni_policy_waits_total 0", "manx_cni_policy_wait_timeouts_total 0")
	for _, err := range []error{report(250, false), report(10_000, true)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := report(-1, true); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a negative time: %v", err)
	}
	expect("manx_cni_policy_waits_total 2", "manx_cni_policy_wait_seconds_total 10.25",
		"manx_cni_policy_wait_timeouts_total 1")
	warnings := r.logs.FilterLevelExact(zapcore.WarnLevel).FilterField(zapcore.Field{
		Key: "endpoint", Type: zapcore.StringType, String: "shop/web"})
	if warnings.Len() != 1 {
		t.Errorf("%d warnings, want one for the wait that ran out", warnings.Len())
	}
}
