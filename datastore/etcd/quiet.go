package etcd

import (
	"slices"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// quietCore passes on what an operator should hear of etcd's own messages. Unlike zap.IncreaseLevel it works whatever
// the level of the log is when it is made, and follows that level when it changes.
type quietCore struct {
	zapcore.Core
	lowest zapcore.Level
	// usual are messages that say nothing of this use of etcd, atEnd those that only tell of a server being closed.
	usual, atEnd []string
	ending       *atomic.Bool
}

// QuietServer returns the logger for an embedded server, which sets ending when it is being closed: each of its steps
// is told at level info, trouble above.
func QuietServer(log *zap.Logger, ending *atomic.Bool) *zap.Logger {
	return quiet(log, quietCore{
		lowest: zap.WarnLevel,
		ending: ending,
		usual: []string{
			"Running http and grpc server on single port",  // etcd's own listeners are off
			"simple token is not cryptographically signed", // nobody logs in to the embedded server
		},
		atEnd: []string{
			"setting up serving from embedded etcd failed",
			"stopping insecure grpc server due to error", "stopped insecure grpc server due to error",
			"stopping secure grpc server due to error", "stopped secure grpc server due to error",
		},
	})
}

// quietClient returns the logger of the client, whose warnings repeat for each retry what our errors say.
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
