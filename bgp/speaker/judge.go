package speaker

import (
	"net/netip"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
)

// refresh computes phase and reason and tells watchers and the log what changed.
func (t *statusTable) refresh(addr netip.Addr, e *sessionEntry, now time.Time) {
	phase, reason := t.judge(addr, e)
	warning := joinSentences(joinSentences(e.warning, e.many), e.note)
	if phase == e.phase && reason == e.reason && warning == e.shown && e.state == e.shownState {
		return
	}
	if warning != "" && warning != e.shown {
		t.log.Warn("bgp session", zap.String("target", "bgp-session"), zap.Stringer("key", addr), zap.String("phase", string(phase)), zap.String("reason", warning))
	}
	e.shown, e.shownState = warning, e.state
	if phase != e.phase {
		e.phaseAt = now
		if phase == PhaseEstablished || e.phase == PhaseEstablished || phase == PhaseRefused {
			t.log.Info("bgp session", zap.String("target", "bgp-session"), zap.Stringer("key", addr), zap.String("phase", string(phase)), zap.String("reason", reason))
		}
	}
	if phase == PhaseFailed && reason != e.reason {
		t.log.Info("bgp session", zap.String("target", "bgp-session"), zap.Stringer("key", addr), zap.String("phase", string(phase)), zap.String("reason", reason))
	}
	e.phase, e.reason = phase, reason
	t.publish(e, now, false)
}

// judge says what a session is up to. It is a function of its arguments only.
func (t *statusTable) judge(addr netip.Addr, e *sessionEntry) (Phase, string) {
	switch {
	case t.fatal != "":
		return PhaseFailed, t.fatal
	case e.refused != "":
		return PhaseRefused, e.refused
	case e.state == gobgp.BGP_FSM_ESTABLISHED:
		return PhaseEstablished, establishedWords(e)
	case !e.held.IsZero():
		return PhaseFailed, e.failure.words
	case e.tried:
		return PhaseFailed, e.failure.words
	case e.session.Passive:
		return PhaseWaiting, "waiting for " + addr.String() + " to connect: this side is passive"
	}
	return PhaseConnecting, connectingWords(e)
}
