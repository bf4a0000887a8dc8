package session

import (
	"net/netip"
	"time"
)

// cleared holds the counts of a session when its counters were cleared; zero: never cleared.
type cleared struct {
	at                     time.Time
	flaps, restarts, downs uint64
	messages               Counters // as GoBGP counts them, of which only messages and updates matter
}

// Clear lets flaps, restarts, messages, failures of the path that BFD found, and the last error if the session is up,
// count from now on. The totals of all sessions go on. It returns the status before; ok is false if there is no such
// session.
func (t *Table) Clear(addr netip.Addr) (before Status, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	if e == nil {
		return Status{}, false
	}
	now := time.Now()
	before = t.status(e, now)
	downs := e.cleared.downs
	if before.BFD != nil {
		downs += before.BFD.Downs
	}
	e.cleared = cleared{at: now, flaps: e.flaps, restarts: e.restarts, downs: downs, messages: e.counters}
	t.publish(e, now, false)
	return before, true
}

// takeOff subtracts from s the counts at the time of the clearing.
func (c *cleared) takeOff(s *Status) {
	if c.at.IsZero() {
		return
	}
	s.Flaps -= c.flaps
	s.Restarts -= c.restarts
	n, was := &s.Counters, c.messages
	n.MessagesIn, n.MessagesOut = since(n.MessagesIn, was.MessagesIn), since(n.MessagesOut, was.MessagesOut)
	n.UpdatesIn, n.UpdatesOut = since(n.UpdatesIn, was.UpdatesIn), since(n.UpdatesOut, was.UpdatesOut)
	if s.BFD != nil {
		s.BFD.Downs = since(s.BFD.Downs, c.downs)
	}
	if s.Phase == PhaseEstablished && s.LastErrorAt.Before(c.at) {
		s.LastError, s.LastErrorAt, s.LastErrorBy = "", time.Time{}, ""
	}
}

// since returns the count since a moment, given the counts of now and then. If now is smaller, the counter began anew
// meanwhile.
func since(now, then uint64) uint64 {
	if now < then {
		return now
	}
	return now - then
}
