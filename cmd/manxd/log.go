package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"github.com/manxnet/manx/daemon/envflag"
)

const (
	logFormatFlag   = "log-format"
	defaultLogLevel = "info"
)

// logOptions configure the log.
type logOptions struct{ level, format string }

// Flags implements group.
func (o *logOptions) Flags(s envflag.Set) {
	s.String(&o.level, "log-level", defaultLogLevel, "debug, info, warn or error; info: logSeverityScreen of "+
		"FelixConfiguration and BGPConfiguration can change it", "MANX_LOG_LEVEL",
		"CALICO_STARTUP_LOGLEVEL")
	s.String(&o.format, logFormatFlag, "", "json or text; empty: text on a terminal, else json", "MANX_LOG_FORMAT")
}

// Check implements group.
func (o *logOptions) Check() error {
	if o.format != "" && o.format != "json" && o.format != "text" {
		return fmt.Errorf("--log-format=%s: want json or text", o.format)
	}
	return nil
}

// newLogLines counts the lines of the log.
func newLogLines() *prometheus.CounterVec {
	lines := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "manx_log_lines_total",
		Help: "Lines of the log, by level."}, []string{"level"})
	for _, l := range []zapcore.Level{zap.InfoLevel, zap.WarnLevel, zap.ErrorLevel} {
		lines.WithLabelValues(l.String())
	}
	return lines
}

// newLogger logs to standard error, as JSON unless that is a terminal, and counts the lines. The level can be changed
// later.
func newLogger(o logOptions, lines *prometheus.CounterVec) (*zap.Logger, zap.AtomicLevel, error) {
	level := o.level
	if level == "warning" { // Calico's spelling
		level = "warn"
	}
	at, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, at, fmt.Errorf("--log-level=%s: want debug, info, warn or error", level)
	}
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey, enc.EncodeTime = "time", zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewJSONEncoder(enc)
	if logFormat(o.format) == "text" {
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	count := zap.Hooks(func(e zapcore.Entry) error {
		lines.WithLabelValues(e.Level.String()).Inc()
		return nil
	})
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), at), count), at, nil
}

// logFormat returns the format of the log for a setting: without one text on a terminal, else JSON.
func logFormat(setting string) string {
	if setting != "" {
		return setting
	}
	if term.IsTerminal(int(os.Stderr.Fd())) { // its mode is not enough: /dev/null is a character device, too
		return "text"
	}
	return "json"
}
