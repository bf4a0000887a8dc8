package speaker

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
)

// Phase is the outcome of a session in one word.
type Phase string

const (
	PhaseEstablished Phase = "Established" // routes are exchanged
	PhaseConnecting  Phase = "Connecting"  // on its way, nothing is wrong so far
	PhaseWaiting     Phase = "Waiting"     // for the peer to connect
	PhaseFailed      Phase = "Failed"      // tried in vain; tried again
	PhaseRefused     Phase = "Refused"     // the session cannot be configured like this
)

// SessionStatus is what is known about one session. It holds no password.
type SessionStatus struct {
	Session bgp.Session // with an empty Password, and the values of defaults
	State   string      // of RFC 4271 section 8.2.2: Idle, Connect, Active, OpenSent, OpenConfirm, Established
	Phase   Phase
	Reason  string    // why it is in this phase, as a sentence to act on
	Warning string    // what is not right although the session is up; empty when all is well
	Since   time.Time // of the phase

	Uptime      time.Duration // 0 when not established
	Flaps       uint64        // times that it was established and lost
	Restarts    uint64        // those of the flaps that were graceful: routes of the peer were kept meanwhile
	LastError   string        // the last failure, also when the session is up again
	LastErrorAt time.Time
	LastErrorBy Direction // who said so
	NextAttempt time.Time // when this side connects next at the latest; zero if it does not, or already tries

	PeerAS       uint32 // as in the peer's OPEN; these are 0 before the first one
	PeerRouterID netip.Addr
	HoldTime     time.Duration // negotiated
	Keepalive    time.Duration
	LocalAddress netip.Addr
	Capabilities []string // of the peer

	Families        []string      // that the peer announced
	AddPathReceive  bool          // the peer sends several paths for a prefix (RFC 7911)
	AddPathSend     bool          // the peer takes several paths for a prefix
	GracefulRestart bool          // the peer announced it for our family
	RestartTime     time.Duration // that the peer announced
	// the peer said that it had restarted, and that it had kept forwarding meanwhile
	PeerRestarted, PeerForward bool
	RestartNotification        bool // NOTIFICATIONs do not end a graceful restart (RFC 8538)
	Counters                   Counters

	BFD *bfd.Status // nil: the path is not watched
}

// Direction tells where an error was noticed.
type Direction string

const (
	DirectionSent     Direction = "sent"     // by this side, which sent a NOTIFICATION
	DirectionReceived Direction = "received" // by the peer, which sent a NOTIFICATION
	DirectionLocal    Direction = "local"    // by this side, and nobody was told
)

// Counters of a session since the peer was configured.
type Counters struct {
	At                             time.Time // when they were read
	Received, Accepted, Advertised uint64    // prefixes
	AdvertisedAt                   time.Time // Advertised costs more and may be older; zero: never counted
	MessagesIn, MessagesOut        uint64
	UpdatesIn, UpdatesOut          uint64
}

func (e *sessionEntry) status(now time.Time) SessionStatus {
	s := SessionStatus{
		Session: e.session, State: stateName(e.state), Phase: e.phase, Reason: e.reason, Warning: e.shown,
		Since: e.phaseAt,
		Flaps: e.flaps, Restarts: e.restarts, LastError: e.failure.words, LastErrorAt: e.failure.at,
		LastErrorBy: e.failure.by, NextAttempt: e.nextAttempt(),
		PeerAS: e.peerAS, PeerRouterID: e.routerID, HoldTime: e.hold, Keepalive: e.keepalive, LocalAddress: e.local,
		Counters:     e.counters,
		Capabilities: e.open.names, Families: e.open.families, AddPathReceive: e.open.addPathSend,
		AddPathSend:     e.open.addPathReceive,
		GracefulRestart: e.open.graceful, RestartTime: time.Duration(e.open.restartTime) * time.Second,
		PeerRestarted: e.open.restarted, PeerForward: e.open.forwarding, RestartNotification: e.open.notification,
	}
	if e.session.BFD.Enabled && e.path != nil {
		if b, ok := e.path(e.session.Address.Unmap()); ok {
			s.BFD = &b
		}
	}
	s.Session.Password = ""
	w := e.session.Wire()
	s.Session.HoldSeconds, s.Session.KeepaliveSeconds, s.Session.RestartSeconds, s.Session.MultihopTTL = w.Hold,
		w.Keepalive, w.Restart, w.TTL
	if !e.upAt.IsZero() {
		s.Uptime = now.Sub(e.upAt)
	}
	e.cleared.takeOff(&s)
	return s
}

func (t *statusTable) list() []SessionStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	list := make([]SessionStatus, 0, len(t.entries))
	for _, e := range t.entries {
		list = append(list, e.status(now))
	}
	slices.SortFunc(list, func(a, b SessionStatus) int {
		return cmp.Or(cmp.Compare(a.Session.Address.BitLen(), b.Session.Address.BitLen()),
			a.Session.Address.Compare(b.Session.Address))
	})
	return list
}

// Sessions returns the status of every wanted session, IPv4 first, in order of addresses. Counters are a few seconds
// old, more when there are so many routes that reading them keeps GoBGP from its work.
func (s *Speaker) Sessions() []SessionStatus {
	s.refreshCounters()
	return s.status.list()
}

// Statuses returns the same without reading counters.
func (s *Speaker) Statuses() []SessionStatus { return s.status.list() }

// Totals are counters of many sessions, also of those that are no longer wanted: they never decrease.
type Totals struct{ Flaps, Restarts uint64 }

func (x Totals) plus(e *sessionEntry) Totals {
	return Totals{Flaps: x.Flaps + e.flaps, Restarts: x.Restarts + e.restarts}
}

// Totals returns the counters of the sessions by type.
func (s *Speaker) Totals() map[bgp.SessionType]Totals {
	t := s.status
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(t.gone)
	for _, e := range t.entries {
		all[e.session.Type] = all[e.session.Type].plus(e)
	}
	return all
}

// Session returns the status of one session including the number of advertised prefixes, whose count looks at all
// routes and is therefore made anew only after a while.
func (s *Speaker) Session(addr netip.Addr) (SessionStatus, bool) {
	addr = addr.Unmap()
	s.countPeer(addr)
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	e := s.status.entries[addr]
	if e == nil {
		return SessionStatus{}, false
	}
	return e.status(time.Now()), true
}
