package gobgpinside

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
)

// logBridge passes GoBGP's log on to zap, one level lower, since to Manx it is detail. Messages below Info are not
// made. GoBGP's messages never hold passwords.
type logBridge struct {
	log   *zap.Logger
	attrs []slog.Attr
}

// LogHandler returns a handler for GoBGP's log.
func LogHandler(log *zap.Logger) slog.Handler { return &logBridge{log: log.Named("gobgp")} }

func (b *logBridge) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (b *logBridge) WithGroup(string) slog.Handler { return b }

func (b *logBridge) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logBridge{log: b.log, attrs: append(append([]slog.Attr{}, b.attrs...), attrs...)}
}

func (b *logBridge) Handle(_ context.Context, rec slog.Record) error {
	switch rec.Message {
	case "failed to stop BGP server", // the speaker has stopped it already, in a better way
		"call set policy": // for each session when the policy changes
		return nil
	}
	fields := make([]zap.Field, 0, rec.NumAttrs()+len(b.attrs))
	for _, a := range b.attrs {
		fields = append(fields, zap.String(a.Key, a.Value.String()))
	}
	rec.Attrs(func(a slog.Attr) bool {
		fields = append(fields, zap.String(a.Key, a.Value.String()))
		return true
	})
	write := b.log.Debug
	switch {
	case rec.Level >= slog.LevelError:
		write = b.log.Warn
	case rec.Level >= slog.LevelWarn:
		write = b.log.Info
	}
	write(rec.Message, fields...)
	return nil
}
