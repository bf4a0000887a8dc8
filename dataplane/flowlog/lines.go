package flowlog

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// mostWaitingLines is the number of lines of the flow log that are kept while they cannot be written.
const mostWaitingLines = 1000

// Lines writes the lines of the flow log. After an error, lines wait in a bounded queue, and are tried again every
// second. It is safe for concurrent use.
type Lines struct {
	name   string
	out    io.Writer
	reopen func() error // nil: out is no file
	log    *zap.Logger

	mu      sync.Mutex
	waiting []string
	lost    int
	failure string
	since   time.Time
}

// NewLines returns the lines that go to a writer, which log lines call by its name. If the writer has a method Reopen,
// it is a file.
func NewLines(name string, out io.Writer, log *zap.Logger) *Lines {
	l := &Lines{name: name, out: out, log: log}
	if file, ok := out.(interface{ Reopen() error }); ok {
		l.reopen = file.Reopen
		_, _ = l.Write(nil) // reports an error of the file now, not with the first line
	}
	return l
}

// Write implements io.Writer. It never fails: a line that cannot be written waits.
func (l *Lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, string(line))
	if l.failure == "" {
		l.flush()
	}
	if more := len(l.waiting) - mostWaitingLines; more > 0 { // the oldest are dropped
		l.waiting = append(l.waiting[:0], l.waiting[more:]...)
		l.lost += more
	}
	return len(line), nil
}

// flush writes the waiting lines.
func (l *Lines) flush() {
	for len(l.waiting) > 0 {
		if _, err := io.WriteString(l.out, l.waiting[0]); err != nil {
			l.fail(err)
			return
		}
		l.waiting = l.waiting[1:]
	}
	l.waiting = nil
	if l.failure != "" {
		l.log.Info("the flow log is written again", zap.String("file", l.name), zap.Int("lost", l.lost))
		l.failure, l.lost = "", 0
	}
}

func (l *Lines) fail(err error) {
	text := err.Error()
	if text == l.failure {
		return
	}
	if l.failure == "" {
		l.since = time.Now()
	}
	l.failure = text
	l.log.Warn("the flow log cannot be written, trying again", zap.String("file", l.name), zap.Error(err))
}

// Run retries waiting lines until ctx ends.
func (l *Lines) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			l.mu.Lock()
			l.flush()
			l.mu.Unlock()
		}
	}
}

// Reopen makes the next line go to the file then at the path.
func (l *Lines) Reopen() {
	if l.reopen == nil {
		return
	}
	err := l.reopen()
	_, _ = l.Write(nil) // creates the file
	l.log.Info("opened the flow log again", zap.String("file", l.name), zap.Error(err))
}

// Problem returns the reason why lines are not written, with its beginning; empty while they are.
func (l *Lines) Problem() (reason string, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == "" {
		return "", time.Time{}
	}
	waiting := 0
	for _, line := range l.waiting {
		waiting += strings.Count(line, "\n")
	}
	return fmt.Sprintf("not written, tried again every second: %s (%d lines wait, %d are lost)", l.failure, waiting,
		l.lost), l.since
}
