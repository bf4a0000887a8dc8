package session

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

// refresh explains a session anew, and publishes and logs any change.
func (t *Table) refresh(addr netip.Addr, e *entry, now time.Time) {
	phase, reason := explain(e, t.fatal)
	warning, was := e.warnings.sentence(), e.shown
	if phase == was.phase && reason == was.reason && warning == was.warning && e.fsm == was.fsm {
		return
	}
	if warning != "" && warning != was.warning {
		t.warn(addr, e, phase, warning, now)
	}
	e.shown = shown{phase, was.since, reason, warning, e.fsm}
	news := phase == PhaseFailed && e.logged.news(was.reason, reason, now)
	if phase != was.phase {
		e.shown.since = now
		news = news || phase == PhaseEstablished || was.phase == PhaseEstablished || phase == PhaseRefused
	}
	if news {
		t.record(e, was, phase, reason, now)
		level := zap.InfoLevel
		if phase == PhaseRefused || phase == PhaseFailed && !(was.phase == PhaseEstablished && deliberate(e.end)) {
			level = zap.WarnLevel
		}
		t.log.Log(level, "bgp session", zap.String("target", "bgp-session"), zap.Stringer("key", addr),
			zap.String("phase", string(phase)), zap.String("reason", reason))
	}
	if phase == PhaseEstablished {
		e.logged = nil
	}
	t.publish(e, now, false)
}

// deliberate reports whether an administrator of either side ended a session (RFC 4486: administrative shutdown, peer
// de-configured, administrative reset, other configuration change).
func deliberate(end *wire.Ended) bool {
	if end == nil {
		return false
	}
	return slices.ContainsFunc([]*message.Notification{end.Received, end.Sent}, func(n *message.Notification) bool {
		return n != nil && n.Code == gobgp.BGP_ERROR_CEASE && slices.Contains(administrative, n.Sub)
	})
}

var administrative = []uint8{gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, gobgp.BGP_ERROR_SUB_PEER_DECONFIGURED,
	gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET, gobgp.BGP_ERROR_SUB_OTHER_CONFIGURATION_CHANGE}

// A peer can cause new warnings as fast as it sends UPDATEs. The first ones are logged, then one in an interval. The
// status of the session has the last one in any case.
const (
	warningsAtOnce = 10
	warningEvery   = 30 * time.Second
)

// warn logs a warning about a session, with the number of those that were not logged before it.
func (t *Table) warn(addr netip.Addr, e *entry, phase Phase, warning string, now time.Time) {
	if e.warned == nil {
		e.warned = rate.NewLimiter(rate.Every(warningEvery), warningsAtOnce)
	}
	if !e.warned.AllowN(now, 1) {
		e.unlogged++
		return
	}
	fields := []zap.Field{zap.String("target", "bgp-session"), zap.Stringer("key", addr),
		zap.String("phase", string(phase)), zap.String("reason", warning)}
	if e.unlogged > 0 {
		fields = append(fields, zap.Int("unlogged", e.unlogged))
	}
	e.unlogged = 0
	t.log.Warn("bgp session", fields...)
}

// loggedReasons are the last reasons for which a session failed and when they last were so. Reasons that alternate are
// logged once each.
type loggedReasons []loggedReason

type loggedReason struct {
	words string
	seen  time.Time
}

const (
	mostLogged = 4
	logAgain   = 30 * time.Minute // after which a reason that comes back is news
)

// news reports whether a reason that replaces another is to be logged.
func (l *loggedReasons) news(before, reason string, now time.Time) bool {
	if before == reason {
		return false
	}
	if i := l.find(before); i >= 0 {
		(*l)[i].seen = now // until now
	}
	if i := l.find(reason); i >= 0 {
		news := now.Sub((*l)[i].seen) > logAgain
		(*l)[i].seen = now
		return news
	}
	if len(*l) == mostLogged {
		*l = slices.Delete(*l, 0, 1)
	}
	*l = append(*l, loggedReason{reason, now})
	return true
}

func (l loggedReasons) find(words string) int {
	return slices.IndexFunc(l, func(r loggedReason) bool { return r.words == words })
}

// strangers are addresses without a session that connected to this node, and when they last did.
type strangers map[netip.Addr]time.Time

// Stranger records a connection of an address without a session, and reports whether it is to be logged.
func (t *Table) Stranger(addr netip.Addr, now time.Time) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.strangeConnections++
	return t.strangers.add(addr, now)
}

// Strangers returns how many connections of addresses without a session were refused.
func (t *Table) Strangers() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.strangeConnections
}

const mostStrangers = 16 // any host can be one

// add reports whether the address is a new one. Of very many, some are not added.
func (s *strangers) add(addr netip.Addr, now time.Time) (added bool) {
	if *s == nil {
		*s = strangers{}
	}
	maps.DeleteFunc(*s, func(_ netip.Addr, at time.Time) bool { return now.Sub(at) > causeMatters })
	_, known := (*s)[addr]
	if known || len(*s) < mostStrangers {
		(*s)[addr] = now
		return !known
	}
	return false
}

// only is the one stranger of the last minutes; it is invalid if there was none, or more than one.
func (s strangers) only(now time.Time) (only netip.Addr) {
	for addr, at := range s {
		switch {
		case now.Sub(at) > causeMatters:
		case only.IsValid():
			return netip.Addr{}
		default:
			only = addr
		}
	}
	return only
}
