package speaker

import (
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
)

// statusTable mirrors the sessions, fed by GoBGP's events and log messages: asking GoBGP itself would stop it
// meanwhile.
type statusTable struct {
	log *zap.Logger
	cfg Config

	mu       sync.Mutex
	entries  map[netip.Addr]*sessionEntry
	fatal    string // why no session can run
	watchers map[*statusWatcher]bool
	count    func(netip.Addr, *received) // counts the routes of a peer
	report   func(netip.Addr, *received) // tells how many there are
	taps     int                         // peers whose packets are looked at

	path func(netip.Addr) (bfd.Status, bool) // what BFD says

	reads budget                     // of reading the counters of all
	gone  map[bgp.SessionType]Totals // of sessions that are no longer wanted

	rejects   rejects
	strangers strangers
}

// sessionEntry is the state of one session. The FSM of GoBGP reaches it through tap without holding mu.
type sessionEntry struct {
	session     bgp.Session
	state       gobgp.FSMState
	since       time.Time // of state
	phase       Phase
	phaseAt     time.Time
	reason      string
	upAt        time.Time
	flaps       uint64
	restarts    uint64
	failure     failure
	dialBy      time.Time // when GoBGP connects next at the latest; zero when it does not, or has
	tried       bool      // failed since it was last established or configured
	refused     string    // cannot be configured
	unprotected string    // why the listener has no MD5 key of the peer, until somebody acts on it
	note        string    // what waits
	warning     string    // what is not right
	many        string    // that the peer announces many prefixes
	shown       string    // both, as published
	malformed   string    // what GoBGP said about the last message that it could not parse

	logged      loggedReasons
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
	open        peerOpen
	cut         time.Time // when BFD found the path broken
	path        func(netip.Addr) (bfd.Status, bool)
	counters    Counters
	cleared     cleared
	counted     budget // of counting what the peer is sent
	tap         *peerTap
	changes     uint64 // of routes of others when the session was not up yet
}

func newStatusTable(cfg Config) *statusTable {
	return &statusTable{log: cfg.Logger, cfg: cfg, entries: map[netip.Addr]*sessionEntry{},
		watchers: map[*statusWatcher]bool{}, gone: map[bgp.SessionType]Totals{}}
}

// setSessions makes the table hold exactly the wanted sessions, and returns those that are new or have changed.
func (t *statusTable) setSessions(want []bgp.Session) (changed []bgp.Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for i := range want {
		addr := want[i].Address.Unmap()
		e := t.entries[addr]
		if e != nil && e.session.Equal(want[i]) {
			continue
		}
		s := want[i]
		changed = append(changed, s)
		if e == nil {
			e = &sessionEntry{state: gobgp.BGP_FSM_IDLE, since: now, tap: t.newTap(addr), path: t.path}
			t.entries[addr] = e
		}
		if e.session.Wire() != s.Wire() {
			e.failure.cause = false // it was one of other settings
		}
		e.session = s
		t.refresh(addr, e, now)
	}
	keep := addressesOf(want)
	for addr, e := range t.entries {
		if !keep[addr] {
			delete(t.entries, addr)
			t.gone[e.session.Type] = t.gone[e.session.Type].plus(e)
			t.publish(e, now, true)
		}
	}
	return changed
}

// addressesOf is the set of the peers' addresses.
func addressesOf(sessions []bgp.Session) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(sessions))
	for i := range sessions {
		set[sessions[i].Address.Unmap()] = true
	}
	return set
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
		e.tap.received.begin(false)
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
		if e.failure.words == refusedOpenWords(e) {
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

// failure is why a session did not come up, or was lost.
type failure struct {
	words string
	by    Direction
	at    time.Time
	cause bool // it explains what else fails, and what would mend it
}

// causeMatters is how long after it was last seen a cause explains better than a symptom why a session does not come
// up. A cause that is a connection of the peer is seen each time that it connects: after 120 s where nothing else is
// configured (RFC 4271 section 10).
const causeMatters = 3 * time.Minute

// fail records why a session does not come up, or was lost.
func (e *sessionEntry) fail(by Direction, sentence string, now time.Time) {
	if !e.held.IsZero() && e.tried {
		return // what holds the session down is what matters
	}
	if !e.cut.IsZero() && now.Sub(e.cut) < cutMatters {
		return // all that follows from a broken path says less
	}
	e.failure, e.tried = failure{words: sentence, by: by, at: now}, true
}

// because records a cause of which the symptoms are that connections fail in this way and that.
func (e *sessionEntry) because(by Direction, sentence string, now time.Time) {
	e.fail(by, sentence, now)
	e.failure.cause = e.failure.words == sentence
}

// symptom records that no connection came about, unless a cause is known.
func (e *sessionEntry) symptom(by Direction, sentence string, now time.Time) {
	if e.tried && e.failure.cause && now.Sub(e.failure.at) < causeMatters {
		return
	}
	e.fail(by, sentence, now)
}

// guess records why a session does not come up when the cause can only be guessed. What a NOTIFICATION said a moment
// ago is better: BIRD, for one, closes further connections without a word while it waits after an error.
func (e *sessionEntry) guess(by Direction, sentence string, now time.Time) {
	if e.tried && e.failure.by != DirectionLocal && now.Sub(e.failure.at) < time.Minute {
		return
	}
	e.symptom(by, sentence, now)
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
			e.upAt, e.tried, e.warning, e.connectedAt, e.stale, e.cut = at, false, "", time.Time{}, time.Time{},
				time.Time{}
			e.many, e.refusal, e.tapped = "", "", time.Time{}
			e.peerAS, e.routerID, e.open = st.PeerASN, st.RouterID, readOpen(st.RemoteCap, e.session.Address)
		case was == gobgp.BGP_FSM_ESTABLISHED:
			e.flaps++
			if st.DisconnectReason == api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART {
				e.restarts++
				e.stale = at.Add(time.Duration(e.open.restartTime) * time.Second)
			}
			if said := e.tried && !e.failure.at.Before(e.upAt) || !e.held.IsZero(); !said {
				e.fail(lossBy(st), lossWords(e, st), at)
			}
			e.upAt = time.Time{}
		case now == gobgp.BGP_FSM_IDLE && was != now:
			if e.failure.at.Before(e.since.Add(-2*time.Second)) || !e.tried {
				if by, w := openingWords(e, was, st); w != "" {
					e.guess(by, w, at)
				}
			}
		}
		if now != gobgp.BGP_FSM_ACTIVE {
			e.connectedAt = time.Time{}
		}
		e.expectDial(was, at)
		e.tap.established.Store(now == gobgp.BGP_FSM_ESTABLISHED)
	})
	return was, now
}
