package session

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire"
	"github.com/manxnet/manx/bgp/wire/message"
)

// Wire records an event on the wire of a peer.
func (t *Table) Wire(addr netip.Addr, event wire.Event) {
	t.change(addr, func(e *entry, now time.Time) {
		switch ev := event.(type) {
		case wire.Connecting:
			e.opening(gobgp.BGP_FSM_CONNECT, now)
			e.dialBy = time.Time{}
		case wire.ConnectFailed:
			e.opening(gobgp.BGP_FSM_ACTIVE, now)
			e.dialBy = ev.Next
			words := dialWords(e, ev.Err)
			e.guess(DirectionLocal, words, now)
			e.failure.unreached = e.failure.words == words
		case wire.Connected:
			e.opening(gobgp.BGP_FSM_OPENSENT, now)
			e.reached()
		case wire.Opened:
			e.opening(gobgp.BGP_FSM_OPENCONFIRM, now)
			e.peer.set(ev.Open)
		case wire.Up:
			e.end = nil
			e.peer.set(ev.Open)
			e.peer.hold, e.peer.keepalive, e.peer.local = ev.Hold, ev.Keepalive, ev.Local.Addr()
			e.warnings = warnings{family: familyWarning(e, ev.Open), waits: e.warnings.waits}
		case wire.Ended:
			e.dialBy = ev.Next
			if ev.Established {
				e.endedSession(ev, now, t.cfg)
			} else {
				e.opening(gobgp.BGP_FSM_ACTIVE, now)
				e.endedOpening(ev, now, t)
			}
		case wire.OtherAddress:
			if e.fsm != gobgp.BGP_FSM_ESTABLISHED { // else it is one connection too many
				e.because(DirectionLocal, otherAddressWords(e, ev.Local.String()), now)
			}
		case wire.Mended:
			e.warnings.mended(ev)
		case wire.Prefixes:
			e.warnings.prefixes = ""
			if ev.Level == wire.Many {
				e.warnings.prefixes = fmt.Sprintf("the peer announces more than %d prefixes; above %d the session is "+
					"shut down", ev.Limit.Warn, ev.Limit.Most)
			}
		}
	})
}

// opening records the state of a connection while there is no session.
func (e *entry) opening(state gobgp.FSMState, now time.Time) {
	if e.fsm != gobgp.BGP_FSM_ESTABLISHED && e.fsm != state {
		e.fsm, e.since = state, now
	}
}

// reached forgets a failure to connect: there is a connection.
func (e *entry) reached() {
	if e.failure.unreached && e.state == failed {
		e.state, e.failure.unreached = fresh, false
	}
}

// endedOpening records the end of a connection before a session was established on it.
func (e *entry) endedOpening(ev wire.Ended, now time.Time, t *Table) {
	if e.fsm == gobgp.BGP_FSM_ESTABLISHED {
		return // one connection too many
	}
	switch {
	case ev.Received != nil && collided(*ev.Received):
	case ev.Received != nil && rejected(*ev.Received):
		e.symptom(DirectionReceived, rejectedWords(e, t.strangers.only(now)), now)
	case ev.Received != nil:
		e.fail(DirectionReceived, receivedWords(e, *ev.Received), now)
	case ev.Cause == wire.CauseCollision, ev.Cause == wire.CauseSettings, ev.Cause == wire.CauseLimit:
	case ev.Cause == wire.CauseSilence:
		e.guess(DirectionSent, silenceWords(e, ev.Detail), now)
	case ev.Cause == wire.CauseLocal && ev.Err != nil:
		e.fail(DirectionLocal, fmt.Sprintf("a connection of %s cannot be used: %v", e.peerName(), ev.Err), now)
	case ev.Cause == wire.CauseNotification && ev.Sent != nil:
		e.fail(DirectionSent, refusedWords(e, ev), now)
	case ev.Cause == wire.CauseConnection && ev.Opened:
		e.guess(DirectionLocal, fmt.Sprintf("%s closed the connection before the session was up: it may have no "+
			"session for our address, or not accept our AS %d", e.peerName(), e.session.LocalAS), now)
	case ev.Cause == wire.CauseConnection:
		e.guess(DirectionLocal, closedWords(e, ev, t.strangers.only(now)), now)
	}
}

// endedSession records the end of a session. GoBGP's event follows, and may come before that of its beginning, too.
func (e *entry) endedSession(ev wire.Ended, now time.Time, cfg Config) {
	e.end = &ev
	e.setFate(routesAfter(ev.Graceful))
	if ev.Graceful {
		e.kept = now.Add(ev.RestartTime)
	} else { // the routes are gone, before the next count
		e.counters.Received, e.counters.Accepted, e.counters.Advertised = 0, 0, 0
	}
	if ev.Cause == wire.CauseLimit {
		e.hold(fmt.Sprintf("%s announced %s; the session is held down for %s", e.peerName(), ev.Detail, cfg.PrefixHold),
			now, now.Add(cfg.PrefixHold))
		return
	}
	if e.state == up || e.failure.unexplained {
		by, words := lossWords(e, ev)
		e.fail(by, words, now)
		e.failure.outdated = ev.Cause == wire.CauseSettings || ev.Received != nil && reconfigured(*ev.Received)
	}
}

// mended adds a warning about a changed UPDATE.
func (w *warnings) mended(ev wire.Mended) {
	words := map[message.Kind]string{
		message.TooLong:           "%s is too long to be passed on, and is taken as withdrawn: %s",
		message.TreatedAsWithdraw: "%s is malformed; its routes are taken as withdrawn (RFC 7606): %s",
		message.Discarded:         "%s has a malformed attribute, which was removed (RFC 7606): %s",
		message.OtherFamily:       "%s was not agreed upon, and is ignored: %s",
	}[ev.Kind]
	which := "an UPDATE"
	switch {
	case ev.Routes == 1:
		which += " with " + ev.First.String()
	case ev.Routes > 1:
		which += fmt.Sprintf(" with %s and %d more prefixes", ev.First, ev.Routes-1)
	}
	which += " of " + ev.At.UTC().Format(time.DateTime) + " UTC"
	if ev.Count > 1 {
		which += fmt.Sprintf(", the %d. such one,", ev.Count)
	}
	w.update, w.updateAt = fmt.Sprintf(words, which, ev.Detail), ev.At
}

// updateMatters is how long a warning about an UPDATE stays.
const updateMatters = 15 * time.Minute

// Expire drops warnings that are old. It is to be called now and then.
func (t *Table) Expire(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, e := range t.entries {
		if e.warnings.update != "" && now.Sub(e.warnings.updateAt) > updateMatters {
			e.warnings.update = ""
			t.refresh(addr, e, now)
		}
	}
}

func familyWarning(e *entry, o *wire.Open) string {
	if o.Family {
		return ""
	}
	family := "IPv6"
	if e.session.Address.Unmap().Is4() {
		family = "IPv4"
	}
	return fmt.Sprintf("no routes are exchanged: the peer does not offer %s unicast on this session, but %v", family,
		o.Families)
}

// dialWords explains why no TCP connection came about.
func dialWords(e *entry, err error) string {
	to := e.endpoint()
	var timeout interface{ Timeout() bool }
	for _, known := range dialErrors {
		if errors.Is(err, known.err) {
			return known.words(e, to)
		}
	}
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Sprintf("no answer from %s (timeout): address unreachable, a firewall, or %s", to, passwordGuess(e))
	}
	return fmt.Sprintf("cannot connect to %s: %v", to, err)
}
