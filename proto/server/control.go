package server

import (
	"context"

	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// levels are those that users may choose: zap's others end the process.
var levels = map[string]zapcore.Level{
	"debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "warn": zapcore.WarnLevel, "error": zapcore.ErrorLevel,
}

// GetLogLevel implements manxv1.ManxServer.
func (s *Server) GetLogLevel(context.Context, *manxv1.GetLogLevelRequest) (*manxv1.GetLogLevelResponse, error) {
	return &manxv1.GetLogLevelResponse{Level: s.config.Level.String()}, nil
}

// SetLogLevel implements manxv1.ManxServer.
func (s *Server) SetLogLevel(_ context.Context, r *manxv1.SetLogLevelRequest) (*manxv1.SetLogLevelResponse, error) {
	level, ok := levels[r.GetLevel()]
	if !ok {
		return nil, status.Errorf(codes.InvalidArgument, "level = %q: want debug, info, warn or error", r.GetLevel())
	}
	previous := s.config.Level.String()
	s.config.Level.SetLevel(level)
	return &manxv1.SetLogLevelResponse{Previous: previous}, nil
}

// Resync implements manxv1.ManxServer.
func (s *Server) Resync(context.Context, *manxv1.ResyncRequest) (*manxv1.ResyncResponse, error) {
	d := s.now().Dataplane
	if d == nil {
		return nil, status.Error(codes.Unavailable, "manxd is starting: the dataplane does not run yet")
	}
	d.Resync()
	return &manxv1.ResyncResponse{Results: []string{
		"the dataplane compares all that is in the kernel with what is wanted, and repairs it: see manxctl routes",
	}}, nil
}
