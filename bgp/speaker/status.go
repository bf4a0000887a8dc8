package speaker

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
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
	Session bgp.Session // with an empty Password
	State   string      // of RFC 4271 section 8.2.2: Idle, Connect, Active, OpenSent, OpenConfirm, Established
	Phase   Phase
	Reason  string    // why it is in this phase, as a sentence to act on
	Warning string    // what is not right although the session is up; empty when all is well
	Since   time.Time // of the phase

	Uptime      time.Duration // 0 when not established
	Flaps       uint64        // times that it was established and lost
	LastError   string        // the last failure, also when the session is up again
	LastErrorAt time.Time

	PeerAS       uint32 // as in the peer's OPEN; these are 0 before the first one
	PeerRouterID netip.Addr
	HoldTime     time.Duration // negotiated
	Keepalive    time.Duration
	LocalAddress netip.Addr
	Capabilities []string // of the peer

	GracefulRestart bool          // the peer announced it for our family
	RestartTime     time.Duration // that the peer announced
	Counters        Counters
}

// Counters of a session since the peer was configured.
type Counters struct {
	At                             time.Time // when they were read
	Received, Accepted, Advertised uint64    // prefixes; Advertised is filled by Speaker.Session only
	MessagesIn, MessagesOut        uint64
	UpdatesIn, UpdatesOut          uint64
}

const countersAge = 5 * time.Second // counters are read again when somebody asks and they are older

// statusTable mirrors the sessions, fed by GoBGP's events and log messages: asking GoBGP itself would stop it meanwhile.
type statusTable struct {
	log *zap.Logger
	cfg Config

	mu       sync.Mutex
	entries  map[netip.Addr]*sessionEntry
	fatal    string // why no session can run
	watchers map[*statusWatcher]bool
	taps     int       // peers whose packets are looked at
	read     time.Time // when the counters were read
}

// sessionEntry is the state of one session. The FSM of GoBGP reaches it through tap without holding mu.
type sessionEntry struct {
	session   bgp.Session
	state     gobgp.FSMState
	since     time.Time // of state
	phase     Phase
	phaseAt   time.Time
	reason    string
	upAt      time.Time
	flaps     uint64
	failure   string
	failureAt time.Time
	tried     bool   // failed since it was last established or configured
	refused   string // cannot be configured
	note      string // what waits
	warning   string // what is not right
	many      string // that the peer announces many prefixes
	shown     string // both, as published
	malformed string // what GoBGP said about the last message that it could not parse

	shownState  gobgp.FSMState
	refusal     string    // what it said, once heard
	tapped      time.Time // until when the packets of the peer are looked at
	connectedAt time.Time // our side has a TCP connection and waits for an OPEN
	stale       time.Time // routes are kept until then although the session is down
	held        time.Time // since when the session is held down for too many prefixes
	peerAS      uint32
	routerID    netip.Addr
	local       netip.Addr
	hold        time.Duration
	keepalive   time.Duration
	caps        []string
	graceful    bool
	restartTime uint16
	counters    Counters
	tap         *peerTap
	changes     uint64 // of routes of others when the session was not up yet
}

func newStatusTable(cfg Config) *statusTable {
	return &statusTable{log: cfg.Logger, cfg: cfg, entries: map[netip.Addr]*sessionEntry{}, watchers: map[*statusWatcher]bool{}}
}

// setSessions makes the table hold exactly the wanted sessions.
func (t *statusTable) setSessions(want []bgp.Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	keep := make(map[netip.Addr]bool, len(want))
	for _, s := range want {
		addr := s.Address.Unmap()
		keep[addr] = true
		e := t.entries[addr]
		if e == nil {
			e = &sessionEntry{state: gobgp.BGP_FSM_IDLE, since: now, tap: &peerTap{}}
			t.entries[addr] = e
		}
		e.session = s
		t.refresh(addr, e, now)
	}
	for addr, e := range t.entries {
		if !keep[addr] {
			delete(t.entries, addr)
			t.publish(e, now, true)
		}
	}
}

// reset forgets all states, because the speaker restarts.
func (t *statusTable) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for addr, e := range t.entries {
		if e.state == gobgp.BGP_FSM_ESTABLISHED {
			e.flaps++
		}
		e.state, e.since, e.tried = gobgp.BGP_FSM_IDLE, now, false
		e.tap.established.Store(false)
		t.refresh(addr, e, now)
	}
}

// cannotRun says why no session can run, empty if they can.
func (t *statusTable) cannotRun() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fatal
}

func (t *statusTable) setFatal(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fatal = ""
	if err != nil {
		t.fatal = err.Error()
	}
	now := time.Now()
	for addr, e := range t.entries {
		t.refresh(addr, e, now)
	}
}

// change runs f on the entry of addr, if it has one, and publishes the outcome.
func (t *statusTable) change(addr netip.Addr, f func(e *sessionEntry, now time.Time)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil {
		now := time.Now()
		f(e, now)
		if e.failure == refusedOpenWords(e) {
			t.tapPeer(addr, e, now)
		}
		t.refresh(addr, e, now)
	}
}

func (t *statusTable) configured(addr netip.Addr, err error) {
	t.change(addr, func(e *sessionEntry, _ time.Time) {
		e.refused = ""
		if err != nil {
			e.refused = err.Error()
		}
	})
}

func (t *statusTable) note(addr netip.Addr, text string) {
	t.change(addr, func(e *sessionEntry, _ time.Time) { e.note = text })
}

func (t *statusTable) hasNote(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && e.note != ""
}

// holdsRoutes tells whether a change of the peer's settings would cost routes: it is up, or restarts gracefully.
func (t *statusTable) holdsRoutes(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && (e.state == gobgp.BGP_FSM_ESTABLISHED || time.Now().Before(e.stale))
}

// fail records why a session does not come up, or was lost.
func (e *sessionEntry) fail(sentence string, now time.Time) {
	if !e.held.IsZero() && e.tried {
		return // what holds the session down is what matters
	}
	e.failure, e.failureAt, e.tried = sentence, now, true
}

// guess records why a session does not come up when the cause can only be guessed. What a NOTIFICATION said a moment ago
// is better: BIRD, for one, closes further connections without a word while it waits after an error.
func (e *sessionEntry) guess(sentence string, now time.Time) {
	if e.tried && strings.Contains(e.failure, "NOTIFICATION") && now.Sub(e.failureAt) < time.Minute {
		return
	}
	e.fail(sentence, now)
}

// transition takes over a state that GoBGP tells and returns the state before and now.
func (t *statusTable) transition(addr netip.Addr, st apiutil.PeerState, at time.Time) (was, now gobgp.FSMState) {
	was, now = gobgp.BGP_FSM_IDLE, st.SessionState
	t.change(addr, func(e *sessionEntry, _ time.Time) {
		was = e.state
		if was != now {
			e.since = at
		}
		e.state = now
		switch {
		case now == gobgp.BGP_FSM_ESTABLISHED:
			e.upAt, e.tried, e.warning, e.connectedAt, e.stale = at, false, "", time.Time{}, time.Time{}
			e.many, e.refusal, e.tapped = "", "", time.Time{}
			e.peerAS, e.routerID = st.PeerASN, st.RouterID
			e.caps, e.graceful, e.restartTime = capabilityNames(st.RemoteCap)
		case was == gobgp.BGP_FSM_ESTABLISHED:
			e.flaps++
			if st.DisconnectReason == api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART {
				e.stale = at.Add(time.Duration(e.restartTime) * time.Second)
			}
			if said := e.tried && !e.failureAt.Before(e.upAt) || !e.held.IsZero(); !said {
				e.fail(lossWords(e, st), at)
			}
			e.upAt = time.Time{}
		case now == gobgp.BGP_FSM_IDLE && was != now:
			if e.failureAt.Before(e.since.Add(-2*time.Second)) || !e.tried {
				if w := openingWords(e, was, st); w != "" {
					e.guess(w, at)
				}
			}
		}
		if now != gobgp.BGP_FSM_ACTIVE {
			e.connectedAt = time.Time{}
		}
		e.tap.established.Store(now == gobgp.BGP_FSM_ESTABLISHED)
	})
	return was, now
}

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
		return PhaseFailed, e.failure
	case e.tried:
		return PhaseFailed, e.failure
	case e.session.Passive:
		return PhaseWaiting, "waiting for " + addr.String() + " to connect: this side is passive"
	}
	return PhaseConnecting, connectingWords(e)
}

func (e *sessionEntry) status(now time.Time) SessionStatus {
	s := SessionStatus{
		Session: e.session, State: stateName(e.state), Phase: e.phase, Reason: e.reason, Warning: e.shown, Since: e.phaseAt,
		Flaps: e.flaps, LastError: e.failure, LastErrorAt: e.failureAt,
		PeerAS: e.peerAS, PeerRouterID: e.routerID, HoldTime: e.hold, Keepalive: e.keepalive, LocalAddress: e.local, Capabilities: e.caps,
		GracefulRestart: e.graceful, RestartTime: time.Duration(e.restartTime) * time.Second, Counters: e.counters,
	}
	s.Session.Password = ""
	if !e.upAt.IsZero() {
		s.Uptime = now.Sub(e.upAt)
	}
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
		return cmp.Or(cmp.Compare(a.Session.Address.BitLen(), b.Session.Address.BitLen()), a.Session.Address.Compare(b.Session.Address))
	})
	return list
}

// Sessions returns the status of every wanted session, IPv4 first, in order of addresses. Counters are at most five seconds old.
func (s *Speaker) Sessions() []SessionStatus {
	if s.status.countersDue() {
		s.readCounters("", false)
	}
	return s.status.list()
}

// Session returns the status of one session with fresh counters, including the number of advertised prefixes, which
// costs time proportional to the number of routes.
func (s *Speaker) Session(addr netip.Addr) (SessionStatus, bool) {
	addr = addr.Unmap()
	s.readCounters(addr.String(), true)
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	e := s.status.entries[addr]
	if e == nil {
		return SessionStatus{}, false
	}
	return e.status(time.Now()), true
}

func (t *statusTable) countersDue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	due := time.Since(t.read) >= countersAge
	if due {
		t.read = time.Now()
	}
	return due
}

// readCounters asks GoBGP for the counters of one peer, or of all.
func (s *Speaker) readCounters(addr string, advertised bool) {
	run := s.current()
	if run == nil {
		return
	}
	read := map[netip.Addr]*api.Peer{}
	err := run.srv.ListPeer(s.ctx, &api.ListPeerRequest{Address: addr, EnableAdvertised: advertised}, func(p *api.Peer) {
		if a, err := netip.ParseAddr(p.GetConf().GetNeighborAddress()); err == nil {
			read[a.Unmap()] = p
		}
	})
	if err != nil {
		return // the server is being replaced
	}
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	now := time.Now()
	for a, p := range read {
		if e := s.status.entries[a]; e != nil {
			e.count(p, now, advertised)
		}
	}
}

func (e *sessionEntry) count(p *api.Peer, now time.Time, advertised bool) {
	c := Counters{At: now, Advertised: e.counters.Advertised}
	for _, f := range p.GetAfiSafis() {
		c.Received += f.GetState().GetReceived()
		c.Accepted += f.GetState().GetAccepted()
		if advertised {
			c.Advertised = f.GetState().GetAdvertised()
		}
	}
	in, out := p.GetState().GetMessages().GetReceived(), p.GetState().GetMessages().GetSent()
	c.MessagesIn, c.MessagesOut, c.UpdatesIn, c.UpdatesOut = in.GetTotal(), out.GetTotal(), in.GetUpdate(), out.GetUpdate()
	e.counters = c
	if t := p.GetTimers().GetState(); e.state == gobgp.BGP_FSM_ESTABLISHED && t != nil {
		e.hold = time.Duration(t.GetNegotiatedHoldTime()) * time.Second
		e.keepalive = time.Duration(t.GetKeepaliveInterval()) * time.Second
		if a, err := netip.ParseAddr(p.GetTransport().GetLocalAddress()); err == nil && !a.IsUnspecified() {
			e.local = a.Unmap()
		}
	}
}

// learnTimers reads what was negotiated, once after a session has come up: the events do not tell.
func (s *Speaker) learnTimers(addr netip.Addr) {
	s.readCounters(addr.String(), false)
	s.status.change(addr, func(*sessionEntry, time.Time) {})
}

// SessionEvent is a change of one session, or its end.
type SessionEvent struct {
	Status  SessionStatus
	Removed bool // the session is not wanted any more
}

type statusWatcher struct {
	pending map[netip.Addr]SessionEvent
	wake    chan struct{}
}

// WatchSessions sends the status of all sessions, and then each one that changes, until ctx is done; then the channel
// is closed. A slow reader misses intermediate states, never the last one.
func (s *Speaker) WatchSessions(ctx context.Context) <-chan SessionEvent {
	w := &statusWatcher{pending: map[netip.Addr]SessionEvent{}, wake: make(chan struct{}, 1)}
	t := s.status
	t.mu.Lock()
	now := time.Now()
	for addr, e := range t.entries {
		w.pending[addr] = SessionEvent{Status: e.status(now)}
	}
	t.watchers[w] = true
	t.mu.Unlock()
	w.signal()
	out := make(chan SessionEvent)
	go func() {
		defer close(out)
		defer t.unwatch(w)
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.ctx.Done():
				return
			case <-w.wake:
			}
			for _, ev := range t.drain(w) {
				select {
				case out <- ev:
				case <-ctx.Done():
					return
				case <-s.ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (w *statusWatcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// publish is called with the table locked.
func (t *statusTable) publish(e *sessionEntry, now time.Time, removed bool) {
	if len(t.watchers) == 0 {
		return
	}
	ev := SessionEvent{Status: e.status(now), Removed: removed}
	for w := range t.watchers {
		w.pending[e.session.Address.Unmap()] = ev
		w.signal()
	}
}

func (t *statusTable) drain(w *statusWatcher) []SessionEvent {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(w.pending), netip.Addr.Compare)
	events := make([]SessionEvent, 0, len(keys))
	for _, k := range keys {
		events = append(events, w.pending[k])
	}
	clear(w.pending)
	return events
}

func (t *statusTable) unwatch(w *statusWatcher) {
	t.mu.Lock()
	delete(t.watchers, w)
	t.mu.Unlock()
}
