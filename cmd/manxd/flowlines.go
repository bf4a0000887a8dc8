package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/safefile"
	"github.com/manxnet/manx/proto/server"
)

// mostWaitingLines is the number of lines of the flow log that are kept while they cannot be written.
const mostWaitingLines = 1000

// flowLogLines writes the lines of the flow log. After an error, lines wait in a bounded queue, and are tried again
// every second; a notice reports the error until it ends. It is safe for concurrent use.
type flowLogLines struct {
	target string // of the flag
	out    io.Writer
	reopen func() error // nil: there is no file
	log    *zap.Logger

	mu      sync.Mutex
	waiting []string
	lost    int
	failure string
	since   time.Time
}

// flowLogLines opens the destination of the lines; its writer is nil for none.
func (o options) flowLogLines(log *zap.Logger) *flowLogLines {
	f := &flowLogLines{target: o.flowLog, log: log}
	switch o.flowLog {
	case "", "stream":
	case "-":
		f.out = os.Stdout
	default:
		file := safefile.NewLog(safefile.LogConfig{
			Path: o.flowLog, Mode: 0o640, MaxSize: int64(o.flowLogMaxSize) << 20, MaxFiles: o.flowLogMaxFiles,
		})
		f.out, f.reopen = file, file.Reopen
		_, _ = f.Write(nil) // reports an error of the file now, not with the first line
	}
	return f
}

// writer returns the writer for a Hub.
func (f *flowLogLines) writer() io.Writer {
	if f.out == nil {
		return nil
	}
	return f
}

// Write implements io.Writer. It never fails: a line that cannot be written waits.
func (f *flowLogLines) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = append(f.waiting, string(line))
	if f.failure == "" {
		f.flush()
	}
	if more := len(f.waiting) - mostWaitingLines; more > 0 { // the oldest are dropped
		f.waiting = append(f.waiting[:0], f.waiting[more:]...)
		f.lost += more
	}
	return len(line), nil
}

// flush writes the waiting lines.
func (f *flowLogLines) flush() {
	for len(f.waiting) > 0 {
		if _, err := io.WriteString(f.out, f.waiting[0]); err != nil {
			f.fail(err)
			return
		}
		f.waiting = f.waiting[1:]
	}
	f.waiting = nil
	if f.failure != "" {
		f.log.Info("the flow log is written again", zap.String("file", f.target), zap.Int("lost", f.lost))
		f.failure, f.lost = "", 0
	}
}

func (f *flowLogLines) fail(err error) {
	text := err.Error()
	if text == f.failure {
		return
	}
	if f.failure == "" {
		f.since = time.Now()
	}
	f.failure = text
	f.log.Warn("the flow log cannot be written, trying again", zap.String("file", f.target), zap.Error(err))
}

// run retries waiting lines until ctx ends.
func (f *flowLogLines) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			f.mu.Lock()
			f.flush()
			f.mu.Unlock()
		}
	}
}

// Reopen makes the next line go to the file then at the path.
func (f *flowLogLines) Reopen() {
	if f.reopen == nil {
		return
	}
	err := f.reopen()
	_, _ = f.Write(nil) // creates the file
	f.log.Info("opened the flow log again", zap.String("file", f.target), zap.Error(err))
}

// Notices report why lines are not written.
func (f *flowLogLines) Notices() []server.Notice {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == "" {
		return nil
	}
	lines := 0
	for _, line := range f.waiting {
		lines += strings.Count(line, "\n")
	}
	return []server.Notice{{Topic: "daemon", Subject: "--flow-log=" + f.target, Since: f.since,
		Text: fmt.Sprintf("not written, tried again every second: %s (%d lines wait, %d are lost)", f.failure, lines,
			f.lost)}}
}
