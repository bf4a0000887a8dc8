package main

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/manxnet/manx/cni"
	"github.com/manxnet/manx/datastore/safefile"
)

// newLogger writes to stderr, which runtimes keep with the error of a failed call, and to the configured file. Standard
// output is for the result.
func newLogger(c *cni.Config, stderr io.Writer) *zap.Logger {
	level := zapcore.InfoLevel
	if l, err := zapcore.ParseLevel(c.LogLevel); err == nil && c.LogLevel != "" {
		level = l
	}
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey, enc.EncodeTime = "time", zapcore.RFC3339NanoTimeEncoder
	cores := []zapcore.Core{zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.AddSync(stderr), level)}
	if c.LogFilePath != "" {
		file := safefile.NewLog(c.Log())
		cores = append(cores, zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.AddSync(file), level))
	}
	return zap.New(zapcore.NewTee(cores...))
}
