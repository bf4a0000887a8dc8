package speaker

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
)

// peerTap is what GoBGP's goroutines look at before they write a log message of a peer.
type peerTap struct {
	established atomic.Bool
	idle        atomic.Pointer[idleHold] // of the FSM that was made last
	received    received
}

// logBridge passes GoBGP's log on to zap, one level lower, since to Manx it is detail, and feeds what its
// events do not tell into the session states. GoBGP's messages never hold passwords.
type logBridge struct {
	log    *zap.Logger
	status *statusTable
	peer   netip.Addr // of messages of a session
	tap    *peerTap
	idle   *idleHold // of the FSM that logs here
	attrs  []slog.Attr
}

func newLogBridge(log *zap.Logger, status *statusTable) *logBridge {
	return &logBridge{log: log.Named("gobgp"), status: status}
}

// Enabled lets debug messages through only for sessions. Of those of a session that is up Handle keeps only what says
// which routes came.
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
			n.peer, n.tap = addr.Unmap(), b.status.tapOf(addr.Unmap())
			if n.tap != nil {
				n.idle = newIdleHold()
				n.tap.idle.Store(n.idle)
			}
		}
	}
	return &n
}

func (t *statusTable) tapOf(addr netip.Addr) *peerTap {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil {
		return e.tap
	}
	return nil
}

func (b *logBridge) Handle(_ context.Context, rec slog.Record) error {
	if b.tap != nil && b.tap.received.heard(rec) || b.tap != nil && rec.Level < slog.LevelInfo &&
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
		b.status.heard(peer, rec.Message, attrs)
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

// heard takes from a log message of GoBGP what its events leave out: why a connection failed, which NOTIFICATION was
// sent or received, and what was malformed.
func (t *statusTable) heard(peer netip.Addr, message string, attrs map[string]slog.Value) {
	number := func(key string) uint8 {
		if v, ok := attrs[key]; ok && v.Kind() == slog.KindInt64 {
			return uint8(v.Int64())
		}
		return 0
	}
	text := func(key string) string {
		if v, ok := attrs[key]; ok {
			return v.String()
		}
		return ""
	}
	var f func(e *sessionEntry, now time.Time)
	switch message {
	case "failed to connect":
		f = func(e *sessionEntry, now time.Time) {
			e.connectedAt = time.Time{}
			e.symptom(DirectionLocal, dialWords(e, text("Error")), now)
			e.dialBy = now.Add(t.cfg.ConnectRetry)
		}
	case "outgoing connection established":
		f = func(e *sessionEntry, now time.Time) { e.connectedAt, e.dialBy = now, time.Time{} }
	case "outgoing connection IO error":
		f = func(e *sessionEntry, now time.Time) {
			e.connectedAt = time.Time{}
			e.dialBy = now.Add(firstDial)
			e.guess(DirectionLocal, closedWords(e, t.strangers.only(now)), now)
		}
	case "Session will be reset due to malformed BGP Header", "Session will be reset due to malformed BGP message",
		"Session will be reset due to malformed BGP update message":
		f = func(e *sessionEntry, _ time.Time) { e.malformed = text("Error") }
	case "the received Update message was treated as withdraw":
		f = func(e *sessionEntry, _ time.Time) {
			e.warning = "the peer sent a malformed UPDATE; its routes were taken as withdrawn (RFC 7606): " +
				text("Error")
		}
	case "Some attributes were discarded":
		f = func(e *sessionEntry, _ time.Time) {
			e.warning = "the peer sent malformed attributes, which were ignored (RFC 7606): " + text("Error")
		}
	case "sent notification":
		f = func(e *sessionEntry, now time.Time) {
			e.connectedAt = time.Time{}
			if by, w := sentWords(e, number("Code"), number("Subcode")); w != "" {
				e.fail(by, w, now)
			}
			if e.state == gobgp.BGP_FSM_ACTIVE {
				e.dialBy = now.Add(firstDial)
			}
			e.malformed = ""
		}
	case "received notification":
		f = func(e *sessionEntry, now time.Time) {
			e.fail(DirectionReceived, receivedWords(e, number("Code"), number("Subcode"), text("Communicated-Reason")),
				now)
		}
	case "hold timer expired":
		f = func(e *sessionEntry, now time.Time) { e.fail(DirectionSent, holdWords(e), now) }
	case "Mismatched local address":
		f = func(e *sessionEntry, now time.Time) {
			if e.state != gobgp.BGP_FSM_ESTABLISHED { // else it is one connection too many
				e.because(DirectionLocal, otherAddressWords(e, text("Addr")), now)
			}
		}
	case "Can't find configuration for a new passive connection":
		t.mu.Lock()
		t.strangers.add(peer, time.Now())
		t.mu.Unlock()
		return
	case "failed to set md5":
		f = func(e *sessionEntry, now time.Time) {
			e.unprotected = "the kernel does not take the MD5 password: " + text("Err")
			e.fail(DirectionLocal, e.unprotected, now)
		}
	default:
		return
	}
	t.change(peer, f)
}
