package main

import (
	"cmp"
	"context"
	"os"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/part"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// logLevel keeps the level of the log as the datastore has it. A level that `manxctl loglevel` sets stays until the
// datastore has another one.
type logLevel struct {
	deps.Deps
	level zap.AtomicLevel
	bgp   string // BGP_LOGSEVERITYSCREEN; empty: not set
}

// newLogLevel returns nil if --log-level decides.
func newLogLevel(d deps.Deps, o logOptions) part.Part {
	if o.level != defaultLogLevel {
		return nil
	}
	return &logLevel{Deps: d, level: d.Control.Level(), bgp: os.Getenv("BGP_LOGSEVERITYSCREEN")}
}

func (l *logLevel) Name() string { return "log-level" }
func (l *logLevel) Needs() part.Needs {
	return part.AllOf(model.KindFelixConfiguration, model.KindBGPConfiguration, model.KindNode)
}

// Run implements part.Part.
func (l *logLevel) Run(ctx context.Context) error {
	last := l.level.Level()
	for {
		snapshot := l.Tables.Snapshot()
		if want := l.severity(snapshot); want != last {
			l.Log.Info("logSeverityScreen changes the level of the log", zap.Stringer("level", want))
			l.level.SetLevel(want)
			last = want
		}
		if _, err := l.Tables.Wait(ctx, snapshot); err != nil {
			return nil
		}
	}
}

// severity returns the level of this node. Felix and BIRD have a log and a level each; of two levels the one with more
// lines counts.
func (l *logLevel) severity(r model.Reader) zapcore.Level {
	felix := felixconfig.Merge(r, l.Node.Name, l.Node.Felix).LogSeverityScreen
	bgp := l.bgp
	for _, name := range []string{"node." + l.Node.Name, "default"} {
		if b := model.Get[model.BGPConfiguration](r, model.ResourceKey(model.KindBGPConfiguration, name)); b != nil {
			bgp = cmp.Or(bgp, b.Spec.LogSeverityScreen)
		}
	}
	a, okA := severities[strings.ToLower(felix)]
	b, okB := severities[strings.ToLower(bgp)]
	switch {
	case okA && okB:
		return min(a, b)
	case okA:
		return a
	case okB:
		return b
	}
	return zap.InfoLevel
}

// severities are the levels in Calico's words.
var severities = map[string]zapcore.Level{"trace": zap.DebugLevel, "debug": zap.DebugLevel, "info": zap.InfoLevel,
	"warning": zap.WarnLevel, "error": zap.ErrorLevel, "fatal": zap.ErrorLevel}
