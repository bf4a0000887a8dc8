package server

import (
	"context"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// levels are the levels that users may choose: zap's others end the process.
var levels = map[string]zapcore.Level{
	"debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "warn": zapcore.WarnLevel, "error": zapcore.ErrorLevel,
}

// logLevel is the level of the daemon's log.
type logLevel struct{ level zap.AtomicLevel }

// GetLogLevel implements manxv1.ManxServer.
func (l logLevel) GetLogLevel(context.Context, *manxv1.GetLogLevelRequest) (*manxv1.GetLogLevelResponse, error) {
	return &manxv1.GetLogLevelResponse{Level: l.level.String()}, nil
}

// SetLogLevel implements manxv1.ManxServer.
func (l logLevel) SetLogLevel(_ context.Context, r *manxv1.SetLogLevelRequest) (*manxv1.SetLogLevelResponse, error) {
	level, ok := levels[r.GetLevel()]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "level = %q: want debug, info, warn or error", r.GetLevel())
	}
	previous := l.level.String()
	l.level.SetLevel(level)
	return &manxv1.SetLogLevelResponse{Previous: previous}, nil
}
