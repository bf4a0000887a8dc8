// Package awscheck has EC2 check, or not check, the addresses of the packets of this instance, as awsSrcDstCheck of
// FelixConfiguration wants.
package awscheck

import (
	"context"
	"sync"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/proto/server"
	"github.com/manxnet/manx/retry"
)

// Part sets the check once after a start and after each change of the setting. It tries again after a failure, which is
// a notice and concerns nothing else.
type Part struct {
	deps.Deps
	instance instance
	patience time.Duration // for an attempt
	backoff  retry.Backoff

	mu      sync.Mutex
	failure string // of the last attempt; empty: none has failed since the last change
	since   time.Time
}

// instance is the virtual machine that this host is.
type instance interface {
	// SetSourceDestCheck switches the check of its primary interface. The text of an error says what to do.
	SetSourceDestCheck(ctx context.Context, on bool) error
}

const setting = "awsSrcDstCheck"

// New returns the part. It connects to nothing before the setting requires it.
func New(d deps.Deps) *Part {
	return &Part{Deps: d, instance: newEC2(), patience: 20 * time.Second,
		backoff: retry.Backoff{Min: 5 * time.Second, Max: 10 * time.Minute, Spread: true}}
}

func (p *Part) Name() string { return "aws-source-dest-check" }

// Needs implements part.Watcher.
func (p *Part) Needs() part.Needs { return part.AllOf(model.KindFelixConfiguration) }

// Run implements part.Part.
func (p *Part) Run(ctx context.Context) error {
	last, end := v3.AWSSrcDstCheckOptionDoNothing, func() {}
	defer func() { end() }()
	for {
		snapshot := p.Tables.Snapshot()
		wanted := v3.AWSSrcDstCheckOptionDoNothing
		if merged := felixconfig.Merge(snapshot, p.Node.Name, p.Node.Felix); merged.AWSSrcDstCheck != nil {
			wanted = *merged.AWSSrcDstCheck
		}
		if wanted != last {
			end()
			last, end = wanted, p.begin(ctx, wanted)
		}
		if _, err := p.Tables.Wait(ctx, snapshot); err != nil {
			return nil
		}
	}
}

// begin sets the check until that has succeeded, or end is called, which returns when nothing is under way any more.
func (p *Part) begin(ctx context.Context, wanted v3.AWSSrcDstCheckOption) (end func()) {
	p.report(nil)
	switch wanted {
	case v3.AWSSrcDstCheckOptionEnable, v3.AWSSrcDstCheckOptionDisable:
	default:
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := p.backoff.Repeat(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, p.patience)
			defer cancel()
			return p.instance.SetSourceDestCheck(ctx, wanted == v3.AWSSrcDstCheckOptionEnable)
		}, func(err error) bool {
			p.report(err)
			return true
		})
		if err == nil {
			p.report(nil)
			p.Log.Info("EC2 has the check of source and destination as set", zap.String(setting, string(wanted)))
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// report records the result of an attempt, and logs a failure that is new.
func (p *Part) report(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && p.failure == "" {
		p.since = time.Now()
	}
	if text != "" && text != p.failure {
		p.Log.Warn("EC2 does not have the check of source and destination as set, trying again", zap.Error(err))
	}
	p.failure = text
}

// Notices implements server.Noticer.
func (p *Part) Notices() []server.Notice {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == "" {
		return nil
	}
	return []server.Notice{{Topic: "node", Subject: setting, Text: p.failure, Since: p.since}}
}
