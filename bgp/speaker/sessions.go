package speaker

import (
	"context"
	"net/netip"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/session"
)

// Aliases of the types of package session, for users of a Speaker.
type (
	SessionStatus = session.Status
	SessionEvent  = session.Event
	Phase         = session.Phase
	Counters      = session.Counters
	Totals        = session.Totals
	Transition    = session.Transition
)

const (
	PhaseEstablished  = session.PhaseEstablished
	PhaseConnecting   = session.PhaseConnecting
	PhaseWaiting      = session.PhaseWaiting
	PhaseFailed       = session.PhaseFailed
	PhaseRefused      = session.PhaseRefused
	DirectionSent     = session.DirectionSent
	DirectionReceived = session.DirectionReceived
	DirectionLocal    = session.DirectionLocal
)

// Sessions returns the status of every wanted session, IPv4 first, in order of addresses. Counters are a few seconds
// old, more when there are so many routes that reading them keeps GoBGP from its work.
func (s *Speaker) Sessions() []SessionStatus {
	s.refreshCounters()
	return s.status.List()
}

// Statuses returns the same without reading counters.
func (s *Speaker) Statuses() []SessionStatus { return s.status.List() }

// Totals returns the counters of the sessions by type.
func (s *Speaker) Totals() map[bgp.SessionType]Totals { return s.status.Totals() }

// Strangers returns how many connections of hosts without a session were refused.
func (s *Speaker) Strangers() uint64 { return s.status.Strangers() }

// Session returns the status of one session including the number of advertised prefixes. Their count reads all routes
// and is therefore made anew only after a while.
func (s *Speaker) Session(addr netip.Addr) (SessionStatus, bool) {
	addr = addr.Unmap()
	s.countPeer(addr)
	return s.status.Get(addr)
}

// History returns the last transitions of the session with an address, or of all sessions if it is invalid, oldest
// first. It outlives the session, and a restart of the speaker.
func (s *Speaker) History(addr netip.Addr) []Transition { return s.status.History(addr.Unmap()) }

// WatchSessions sends the status of all sessions, and then each one that changes, until ctx is done; then the channel
// is closed. A slow reader misses intermediate states, never the last one.
func (s *Speaker) WatchSessions(ctx context.Context) <-chan SessionEvent {
	return s.status.Watch(ctx, s.ctx)
}

// ClearSession sets to zero the flaps, restarts, messages and BFD failures of a session, and clears the last error if
// the session is up. The totals of all sessions go on. It returns the status before; ok is false if there is no such
// session.
func (s *Speaker) ClearSession(addr netip.Addr) (before SessionStatus, ok bool) {
	addr = addr.Unmap()
	s.readCounters(addr.String(), false)
	return s.status.Clear(addr)
}
