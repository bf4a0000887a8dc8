package session

import (
	"log/slog"
	"net/netip"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// ReadLog takes from a log message of GoBGP the facts that its events leave out: why a connection failed, which
// NOTIFICATION was sent or received, and which part was malformed.
func (t *Table) ReadLog(peer netip.Addr, message string, attrs map[string]slog.Value) {
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
	var f func(e *entry, now time.Time)
	switch message {
	case "failed to connect":
		f = func(e *entry, now time.Time) {
			e.connectedAt = time.Time{}
			e.symptom(DirectionLocal, dialWords(e, text("Error")), now)
			e.dialBy = now.Add(t.cfg.ConnectRetry)
		}
	case "outgoing connection established":
		f = func(e *entry, now time.Time) { e.connectedAt, e.dialBy = now, time.Time{} }
	case "outgoing connection IO error":
		f = func(e *entry, now time.Time) {
			e.connectedAt = time.Time{}
			e.dialBy = now.Add(FirstDial)
			e.guess(DirectionLocal, closedWords(e, t.strangers.only(now)), now)
		}
	case "Session will be reset due to malformed BGP Header", "Session will be reset due to malformed BGP message",
		"Session will be reset due to malformed BGP update message":
		f = func(e *entry, _ time.Time) { e.hints.malformed = text("Error") }
	case "the received Update message was treated as withdraw":
		f = func(e *entry, _ time.Time) {
			e.warnings.malformed = "the peer sent a malformed UPDATE; its routes were taken as withdrawn (RFC 7606): " +
				text("Error")
		}
	case "Some attributes were discarded":
		f = func(e *entry, _ time.Time) {
			e.warnings.malformed = "the peer sent malformed attributes, which were ignored (RFC 7606): " + text("Error")
		}
	case "sent notification":
		f = func(e *entry, now time.Time) {
			e.connectedAt = time.Time{}
			if by, w := sentWords(e, number("Code"), number("Subcode")); w != "" {
				e.fail(by, w, now)
			}
			if e.fsm == gobgp.BGP_FSM_ACTIVE {
				e.dialBy = now.Add(FirstDial)
			}
			e.hints.malformed = ""
		}
	case "received notification":
		f = func(e *entry, now time.Time) {
			e.fail(DirectionReceived, receivedWords(e, number("Code"), number("Subcode"), text("Communicated-Reason")),
				now)
		}
	case "hold timer expired":
		f = func(e *entry, now time.Time) { e.fail(DirectionSent, holdWords(e), now) }
	case "Mismatched local address":
		f = func(e *entry, now time.Time) {
			if e.fsm != gobgp.BGP_FSM_ESTABLISHED { // else it is one connection too many
				e.because(DirectionLocal, otherAddressWords(e, text("Addr")), now)
			}
		}
	case "Can't find configuration for a new passive connection":
		t.mu.Lock()
		t.strangers.add(peer, time.Now())
		t.mu.Unlock()
		return
	case "failed to set md5":
		f = func(e *entry, now time.Time) {
			e.hints.unprotected = "the kernel does not take the MD5 password: " + text("Err")
			e.fail(DirectionLocal, e.hints.unprotected, now)
		}
	default:
		return
	}
	t.change(peer, f)
}
