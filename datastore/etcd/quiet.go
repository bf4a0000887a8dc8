package etcd

import (
	"slices"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quietCore filters etcd's own messages. Unlike zap.IncreaseLevel it works at every level of the log, and follows a
// change of that level.
type quietCore struct {
	zapcore.Core
	lowest zapcore.Level
	// usual are irrelevant messages, atEnd messages that only report the close of a server.
	usual, atEnd []string
	ending       *atomic.Bool
}

// QuietServer returns the logger for an embedded server, which sets ending when it closes: each of its steps is logged
// at level info, problems above.
func QuietServer(log *zap.Logger, ending *atomic.Bool) *zap.Logger {
	return quiet(log, quietCore{
		lowest: zap.WarnLevel,
		ending: ending,
		usual: []string{
			"Running http and grpc server on single port",  // etcd's own listeners are off
			"simple token is not cryptographically signed", // the embedded server has no users
		},
		atEnd: []string{
			"setting up serving from embedded etcd failed",
			"stopping insecure grpc server due to error", "stopped insecure grpc server due to error",
			"stopping secure grpc server due to error", "stopped secure grpc server due to error",
		},
	})
}

// quietClient returns the logger of the client, whose warnings repeat our errors for each retry.
func quietClient(log *zap.Logger) *zap.Logger {
	return quiet(log, quietCore{lowest: zap.ErrorLevel, ending: new(atomic.Bool)})
}

func quiet(log *zap.Logger, c quietCore) *zap.Logger {
	return log.WithOptions(zap.WrapCore(func(inner zapcore.Core) zapcore.Core {
		c.Core = inner
		return &c
	}))
}

// Enabled implements zapcore.LevelEnabler.
func (c *quietCore) Enabled(l zapcore.Level) bool { return l >= c.lowest && c.Core.Enabled(l) }

// With implements zapcore.Core.
func (c *quietCore) With(fields []zapcore.Field) zapcore.Core {
	with := *c
	with.Core = c.Core.With(fields)
	return &with
}

// Check implements zapcore.Core.
func (c *quietCore) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	begins := func(text string) bool { return strings.HasPrefix(e.Message, text) }
	if !c.Enabled(e.Level) || slices.ContainsFunc(c.usual, begins) || c.ending.Load() &&
		slices.ContainsFunc(c.atEnd, begins) {
		return to
	}
	return c.Core.Check(e, to)
}
