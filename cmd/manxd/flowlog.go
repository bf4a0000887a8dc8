package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/dataplane/flowlog"
	"github.com/manxnet/manx/dataplane/kernel/nflog"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/safefile"
	"github.com/manxnet/manx/proto/server"
)

// flowLogGroup is the NFLOG group for packets that policy drops or logs; calico/node uses 1 and 2.
const flowLogGroup = 86

// flowLogOptions choose the place of the flow log, and limit it.
type flowLogOptions struct {
	to       string // a file, "-" or "stream"; empty: off
	rate     int    // flows a second
	maxSize  int    // MiB
	maxFiles int
}

// Flags implements group.
func (o *flowLogOptions) Flags(s envflag.Set) {
	s.String(&o.to, "flow-log", "", "record packets that policy drops, and matches of its Log rules, with the "+
		"rule: lines of JSON to this file, - for standard output, or stream for the control API (manxctl drops) only; "+
		"empty: off", "MANX_FLOW_LOG")
	s.Int(&o.rate, "flow-log-rate", 100, "flows a second that are recorded at most; the others are counted",
		"MANX_FLOW_LOG_RATE")
	s.Int(&o.maxSize, "flow-log-max-size", 100,
		"size in MiB from which the flow log begins a new file; 0: never", "MANX_FLOW_LOG_MAX_SIZE")
	s.Int(&o.maxFiles, "flow-log-max-files", 10, "earlier files of the flow log that are kept; 0: all",
		"MANX_FLOW_LOG_MAX_FILES")
}

// Check implements group.
func (o *flowLogOptions) Check() error {
	switch {
	case o.rate < 1:
		return fmt.Errorf("--flow-log-rate=%d: want 1 or more", o.rate)
	case o.maxSize < 0:
		return fmt.Errorf("--flow-log-max-size=%d: want 0 or more", o.maxSize)
	case o.maxFiles < 0:
		return fmt.Errorf("--flow-log-max-files=%d: want 0 or more", o.maxFiles)
	}
	return nil
}

// on reports whether the flow log is configured.
func (o *flowLogOptions) on() bool { return o.to != "" }

// group returns the NFLOG group of the packets that policy drops or logs, 0 for none.
func (o *flowLogOptions) group() uint16 {
	if o.on() {
		return flowLogGroup
	}
	return 0
}

// flowLog reports packets that policy drops and logs.
type flowLog struct {
	hub   *flowlog.Hub
	lines *flowlog.Lines // nil: the log is only served to callers
	file  string         // of the flag
	log   *zap.Logger
}

// newFlowLog returns nil if it is not configured.
func newFlowLog(d deps.Deps, o flowLogOptions, p *policyPart, reopen *reopener) part.Part {
	if p == nil || !o.on() {
		return nil
	}
	f := &flowLog{file: o.to, log: d.Log.Named("flow-log")}
	var lines io.Writer
	if f.lines = o.lines(f.log); f.lines != nil {
		reopen.add(f.lines.Reopen)
		lines = f.lines
	}
	f.hub = flowlog.NewHub(o.rate, lines, p.PolicyAgent.EndpointOf)
	d.Control.Drops.Show(f.hub)
	return f
}

// lines opens the destination of the lines; nil for none.
func (o *flowLogOptions) lines(log *zap.Logger) *flowlog.Lines {
	switch o.to {
	case "", "stream":
		return nil
	case "-":
		return flowlog.NewLines(o.to, os.Stdout, log)
	}
	return flowlog.NewLines(o.to, safefile.NewLog(safefile.LogConfig{
		Path: o.to, Mode: 0o640, MaxSize: int64(o.maxSize) << 20, MaxFiles: o.maxFiles,
	}), log)
}

func (f *flowLog) Name() string { return "flow-log" }

// Notices report that lines are not written.
func (f *flowLog) Notices() []server.Notice {
	if f.lines == nil {
		return nil
	}
	reason, since := f.lines.Problem()
	if reason == "" {
		return nil
	}
	return []server.Notice{{Topic: "daemon", Subject: "--flow-log=" + f.file, Since: since, Text: reason}}
}

// Run implements part.Part.
func (f *flowLog) Run(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return f.hub.Run(ctx) })
	if f.lines != nil {
		tasks.Go(func() error { return f.lines.Run(ctx) })
	}
	tasks.Go(func() error { return f.read(ctx) })
	return tasks.Wait()
}

// read reads the packets that the rules log, until ctx ends.
func (f *flowLog) read(ctx context.Context) error {
	logged := ""
	for ctx.Err() == nil {
		started := time.Now()
		err := nflog.Read(ctx, nil, flowLogGroup, func(p nflog.Packet) { f.hub.Add(entryOf(p, time.Now())) })
		if time.Since(started) > time.Minute {
			logged = "" // it worked meanwhile
		}
		if err != nil && err.Error() != logged { // once, not at each attempt
			logged = err.Error()
			f.log.Warn("dropped and logged packets are not recorded, trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	}
	return ctx.Err()
}

var protocolNames = map[uint8]string{1: "icmp", 4: "ipip", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp",
	136: "udplite"}

func entryOf(p nflog.Packet, now time.Time) flowlog.Entry {
	e := flowlog.Entry{
		Time: now, Action: flowlog.Dropped, Source: p.Source, Destination: p.Destination,
		Protocol:   protocolNames[p.Protocol],
		SourcePort: p.SourcePort, DestinationPort: p.DestinationPort, In: p.In, Out: p.Out,
	}
	logged := false
	if e.Rule, logged = policy.ParseLogPrefix(p.Prefix); logged {
		e.Action = flowlog.Logged
	}
	if e.Protocol == "" {
		e.Protocol = fmt.Sprint(p.Protocol)
	}
	if p.Protocol == 1 || p.Protocol == 58 {
		e.ICMPType, e.ICMPCode = &p.ICMPType, &p.ICMPCode
	}
	return e
}

var errFlowLogNeedsPolicy = errors.New("--flow-log needs --policy: without policy nothing is dropped")
