package server

import (
	"errors"
	"strings"
	"testing"
)

func TestPolicyCountersAreMetrics(t *testing.T) {
	r, p := withPolicy(t)
	get := r.web()
	page := func() string {
		_, body := get("/metrics")
		return body
	}
	for _, want := range []string{`manx_dropped_packets_total{reason="policy"} 7`,
		`manx_dropped_packets_total{reason="source_check"} 0`} {
		if body := page(); !strings.Contains(body, want+"\n") {
			t.Errorf("no %s:\n%s", want, body)
		}
	}
	p.err = errors.New("no buffer space available")
	if body := page(); strings.Contains(body, "\nmanx_dropped_") || !strings.Contains(body, "\nmanx_policy_in_sync ") {
		t.Errorf("the kernel does not answer:\n%s", body)
	}
}
