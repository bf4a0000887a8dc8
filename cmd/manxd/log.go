package main

import (
	"fmt"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger logs to standard error, as JSON unless that is a terminal. The level can be changed later.
func newLogger(level, format string) (*zap.Logger, zap.AtomicLevel, error) {
	if level == "warning" { // Calico's spelling
		level = "warn"
	}
	at, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, at, fmt.Errorf("--log-level=%s: want debug, info, warn or error", level)
	}
	if format == "" {
		format = "json"
		if st, err := os.Stderr.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			format = "text"
		}
	}
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey, enc.EncodeTime = "time", zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewJSONEncoder(enc)
	if format == "text" {
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), at)), at, nil
}
