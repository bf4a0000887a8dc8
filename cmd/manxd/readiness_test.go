package main

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/manxnet/manx/proto/server"
)

// The log has the reasons once for each change, and nothing for a look without one.
func TestReadinessIsLogged(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	var bad []server.Check
	r := &readiness{log: zap.New(core), ready: func() (bool, []server.Check) {
		return len(bad) == 0, append([]server.Check{{Name: "bgp", OK: true, Reason: "fine"}}, bad...)
	}}
	for _, x := range []struct {
		bad  []server.Check
		want string // of the line; empty for none
	}{
		{nil, "the node is ready"},
		{nil, ""},
		{[]server.Check{{Name: "settings", Reason: "bpfEnabled is true"}}, "the node is not ready"},
		{[]server.Check{{Name: "settings", Reason: "bpfEnabled is 1"}}, ""},
		{nil, "the node is ready"},
	} {
		bad = x.bad
		r.look()
		lines := log.TakeAll()
		if x.want == "" && len(lines) == 0 {
			continue
		}
		if len(lines) != 1 || lines[0].Message != x.want {
			t.Fatalf("%v: %v, want %q", x.bad, lines, x.want)
		}
		if got := lines[0].ContextMap()["checks"]; len(bad) > 0 && got != "settings: bpfEnabled is true" {
			t.Errorf("the reasons are %q", got)
		}
	}
}
