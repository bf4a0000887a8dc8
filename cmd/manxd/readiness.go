package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/proto/server"
	"github.com/manxnet/manx/retry"
)

// readiness logs why the node is not ready, when that changes.
type readiness struct {
	ready  func() (bool, []server.Check)
	log    *zap.Logger
	failed []string // the names of the failed checks, as logged
	known  bool     // something was logged
}

// readinessPoll is the pause between two looks. The first look comes after one: checks fail while manxd starts.
const readinessPoll = 5 * time.Second

func newReadiness(d deps.Deps) *readiness { return &readiness{ready: d.Control.Ready, log: d.Log} }

func (r *readiness) Name() string { return "readiness" }

// Run implements part.Part.
func (r *readiness) Run(ctx context.Context) error {
	for retry.Sleep(ctx, readinessPoll) {
		r.look()
	}
	return nil
}

// look logs a line if other checks fail than at the last look. Reasons alone may change all the time.
func (r *readiness) look() {
	ready, checks := r.ready()
	var failed, reasons []string
	for _, c := range checks {
		if !c.OK {
			failed, reasons = append(failed, c.Name), append(reasons, c.Name+": "+c.Reason)
		}
	}
	if r.known && slices.Equal(failed, r.failed) {
		return
	}
	r.failed, r.known = failed, true
	if ready {
		r.log.Info("the node is ready")
		return
	}
	r.log.Warn("the node is not ready", zap.String("checks", strings.Join(reasons, "; ")))
}
