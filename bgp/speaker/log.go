package speaker

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"go.uber.org/zap"
)

// logBridge passes GoBGP's log on to zap, one level lower, since to Manx it is detail. It also feeds into the session
// states the facts that GoBGP's events lack. GoBGP's messages never hold passwords.
type logBridge struct {
	log   *zap.Logger
	sp    *Speaker
	peer  netip.Addr // of messages of a session
	tap   *peerTap
	idle  *idleHold // of the FSM that logs here
	attrs []slog.Attr
}

func newLogBridge(sp *Speaker) *logBridge {
	return &logBridge{log: sp.log.Named("gobgp"), sp: sp}
}

// Enabled lets debug messages through only for sessions. For a session that is up, Handle keeps only the messages about
// received routes.
func (b *logBridge) Enabled(_ context.Context, level slog.Level) bool {
	if level >= slog.LevelInfo {
		return true
	}
	return b.tap != nil
}

func (b *logBridge) WithGroup(string) slog.Handler { return b }

func (b *logBridge) WithAttrs(attrs []slog.Attr) slog.Handler {
	n := *b
	n.attrs = append(append([]slog.Attr{}, b.attrs...), attrs...)
	for _, a := range attrs {
		if addr, err := netip.ParseAddr(a.Value.String()); a.Key == "Key" && err == nil {
			n.peer, n.tap = addr.Unmap(), b.sp.taps.of(addr.Unmap())
			if n.tap != nil {
				n.idle = newIdleHold()
				n.tap.idle.Store(n.idle)
			}
		}
	}
	return &n
}

func (b *logBridge) Handle(_ context.Context, rec slog.Record) error {
	if b.tap != nil && b.tap.received.readLog(rec) || b.tap != nil && rec.Level < slog.LevelInfo &&
		b.tap.established.Load() {
		return nil
	}
	switch rec.Message {
	case "failed to stop BGP server", // speakerRun.stop has stopped it already, in a better way
		"call set policy": // for each session when the policy changes
		return nil
	}
	attrs := make(map[string]slog.Value, rec.NumAttrs()+len(b.attrs))
	for _, a := range b.attrs {
		attrs[a.Key] = a.Value
	}
	rec.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value
		return true
	})
	peer := b.peer
	if !peer.IsValid() {
		if k, ok := attrs["Key"]; ok {
			if addr, err := netip.ParseAddr(k.String()); err == nil {
				peer = addr.Unmap()
			}
		}
	}
	if rec.Message == "Peer Down" {
		b.idle.lost(attrs["Reason"].String(), time.Now())
	}
	if peer.IsValid() {
		b.sp.status.ReadLog(peer, rec.Message, attrs)
	}
	var write func(string, ...zap.Field)
	switch {
	case rec.Level >= slog.LevelError:
		write = b.log.Warn
	case rec.Level >= slog.LevelWarn:
		write = b.log.Info
	default:
		write = b.log.Debug
	}
	fields := make([]zap.Field, 0, len(attrs))
	for k, v := range attrs {
		fields = append(fields, zap.String(k, v.String()))
	}
	write(rec.Message, fields...)
	return nil
}
