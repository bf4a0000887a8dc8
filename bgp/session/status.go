package session

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

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

// Status is the state of one session. It holds no password.
type Status struct {
	Session bgp.Session // with an empty Password, and the values of defaults
	State   string      // of RFC 4271 section 8.2.2: Idle, Connect, Active, OpenSent, OpenConfirm, Established
	Phase   Phase
	Reason  string    // why it is in this phase, as a sentence to act on
	Warning string    // a problem although the session is up; empty: none
	Since   time.Time // of the phase

	Uptime      time.Duration // 0 when not established
	Flaps       uint64        // times that it was established and lost
	Restarts    uint64        // those of the flaps that were graceful: routes of the peer were kept meanwhile
	LastError   string        // the last failure, also when the session is up again
	LastErrorAt time.Time
	LastErrorBy Direction // the side that reported it
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
	// the peer announced that it had restarted, and that it had kept forwarding meanwhile
	PeerRestarted, PeerForward bool
	RestartNotification        bool // NOTIFICATIONs do not end a graceful restart (RFC 8538)
	Counters                   Counters

	BFD *bfd.Status // nil: the path is not watched
}

// Direction is the side that noticed an error.
type Direction string

const (
	DirectionSent     Direction = "sent"     // by this side, which sent a NOTIFICATION
	DirectionReceived Direction = "received" // by the peer, which sent a NOTIFICATION
	DirectionLocal    Direction = "local"    // by this side, without a message to the peer
)

// Counters of a session since the peer was configured.
type Counters struct {
	At                             time.Time // when they were read
	Received, Accepted, Advertised uint64    // prefixes
	AdvertisedAt                   time.Time // Advertised costs more and may be older; zero: never counted
	MessagesIn, MessagesOut        uint64
	UpdatesIn, UpdatesOut          uint64
}

func (t *Table) status(e *entry, now time.Time) Status {
	s := Status{
		Session: e.session, State: stateName(e.fsm), Phase: e.shown.phase, Reason: e.shown.reason,
		Warning: e.shown.warning, Since: e.shown.since,
		Flaps: e.flaps, Restarts: e.restarts, LastError: e.failure.words, LastErrorAt: e.failure.at,
		LastErrorBy: e.failure.by, NextAttempt: e.nextAttempt(),
		PeerAS: e.peer.as, PeerRouterID: e.peer.routerID, HoldTime: e.peer.hold, Keepalive: e.peer.keepalive,
		LocalAddress: e.peer.local,
		Counters:     e.counters,
		Capabilities: e.peer.offers.capabilities, Families: e.peer.offers.families,
		AddPathReceive: e.peer.open.SendsPaths, AddPathSend: e.peer.open.TakesPaths,
		GracefulRestart: e.peer.open.Graceful, RestartTime: e.peer.open.RestartTime,
		PeerRestarted: e.peer.open.Restarted, PeerForward: e.peer.open.Forwarding,
		RestartNotification: e.peer.open.Notifications,
	}
	if e.session.BFD.Enabled && t.cfg.Path != nil {
		if b, ok := t.cfg.Path(e.session.Address.Unmap()); ok {
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

// List returns the status of every wanted session, IPv4 first, in order of addresses.
func (t *Table) List() []Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	list := make([]Status, 0, len(t.entries))
	for _, e := range t.entries {
		list = append(list, t.status(e, now))
	}
	slices.SortFunc(list, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Session.Address.BitLen(), b.Session.Address.BitLen()),
			a.Session.Address.Compare(b.Session.Address))
	})
	return list
}

// Totals are counters of many sessions, including removed ones: they never decrease.
type Totals struct{ Flaps, Restarts uint64 }

func (x Totals) plus(e *entry) Totals {
	return Totals{Flaps: x.Flaps + e.flaps, Restarts: x.Restarts + e.restarts}
}

// Totals returns the counters of the sessions by type.
func (t *Table) Totals() map[bgp.SessionType]Totals {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := maps.Clone(t.gone)
	for _, e := range t.entries {
		all[e.session.Type] = all[e.session.Type].plus(e)
	}
	return all
}

// Get returns the status of one session; ok is false if there is none with the address.
func (t *Table) Get(addr netip.Addr) (s Status, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	if e == nil {
		return Status{}, false
	}
	return t.status(e, time.Now()), true
}

func stateName(s gobgp.FSMState) string {
	switch s {
	case gobgp.BGP_FSM_CONNECT:
		return "Connect"
	case gobgp.BGP_FSM_ACTIVE:
		return "Active"
	case gobgp.BGP_FSM_OPENSENT:
		return "OpenSent"
	case gobgp.BGP_FSM_OPENCONFIRM:
		return "OpenConfirm"
	case gobgp.BGP_FSM_ESTABLISHED:
		return "Established"
	}
	return "Idle"
}
