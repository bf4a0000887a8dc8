package session

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/bgp/wire"
)

// Config has the inputs with which a Table explains sessions.
type Config struct {
	Logger     *zap.Logger
	PrefixHold time.Duration // that a session stays down after too many prefixes
	// Path returns the BFD status of the path to a peer; nil: no BFD.
	Path func(netip.Addr) (bfd.Status, bool)
}

// Table has the state of each session and its reason, from the events on the wire and GoBGP's. It is safe for
// concurrent use.
type Table struct {
	log *zap.Logger
	cfg Config

	mu                 sync.Mutex
	entries            map[netip.Addr]*entry
	wanted             []bgp.Session // of the last SetSessions
	fatal              string        // why no session can run
	watchers           map[*watcher]bool
	gone               map[bgp.SessionType]Totals // of sessions that are no longer wanted
	strangers          strangers
	strangeConnections uint64
	history            history
}

// entry is one session: its configuration, its state, and its published status.
type entry struct {
	session bgp.Session
	refused string // why it cannot be configured

	connection
	state     state
	heldSince time.Time // for too many prefixes
	failure   failure
	kept      time.Time   // routes are kept until then although the session is down
	end       *wire.Ended // of the last session; nil: it has not ended
	routes    fate        // of the last session
	last      *Transition // nil: none was recorded
	began     time.Time   // when the phase in which last ended began
	peer      peer

	flaps, restarts uint64
	counters        Counters
	cleared         cleared

	warnings warnings
	shown    shown
	logged   loggedReasons
	warned   *rate.Limiter // nil: nothing was
	unlogged int           // warnings since the last logged one
}

// warnings are problems of a session that is up.
type warnings struct {
	family   string // the peer does not offer the family of the session
	update   string // an UPDATE of the peer was changed
	updateAt time.Time
	prefixes string // that the peer announces many
	waits    string // the changes that wait for the end of the session
	path     string // that BFD has not come up
}

func (w warnings) sentence() string {
	return joinSentences(joinSentences(w.family, w.update), joinSentences(joinSentences(w.prefixes, w.path), w.waits))
}

// peer has the values negotiated with the peer, 0 before the first OPEN.
type peer struct {
	as              uint32
	routerID, local netip.Addr
	hold, keepalive time.Duration
	open            wire.Open
	offers          offers
}

func (p *peer) set(o *wire.Open) {
	p.as, p.routerID, p.open, p.offers = o.AS, o.RouterID, *o, readOffers(o)
}

// shown is the status published last.
type shown struct {
	phase   Phase
	since   time.Time // of phase
	reason  string
	warning string
	fsm     gobgp.FSMState
}

// NewTable makes a table without sessions.
func NewTable(cfg Config) *Table {
	return &Table{log: cfg.Logger, cfg: cfg, entries: map[netip.Addr]*entry{}, watchers: map[*watcher]bool{},
		gone: map[bgp.SessionType]Totals{}, history: history{of: map[netip.Addr]int{}}}
}

// SetSessions makes the table hold exactly the wanted sessions. It returns those that are new or have changed, and the
// addresses of those that it held before and that are not wanted any more.
func (t *Table) SetSessions(want []bgp.Session) (changed []bgp.Session, gone []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	changed, gone = t.want(want)
	for _, s := range changed {
		addr := s.Address.Unmap()
		e := t.entries[addr]
		if e == nil {
			e = &entry{connection: connection{fsm: gobgp.BGP_FSM_IDLE, since: now}}
			t.entries[addr] = e
		}
		if e.session.Wire() != s.Wire() {
			e.failure.cause, e.failure.outdated = false, true // it was one of other settings
		}
		e.session = s
		t.refresh(addr, e, now)
	}
	for _, addr := range gone {
		e := t.entries[addr]
		delete(t.entries, addr)
		t.gone[e.session.Type] = t.gone[e.session.Type].plus(e)
		e.setFate(routesWithdrawn)
		t.record(e, e.shown, phaseRemoved, "neither the mesh nor a BGPPeer configures it any more", now)
		t.publish(e, now, true)
	}
	return changed, gone
}

// want replaces the wanted sessions, and compares the two lists. A session that stays at its place from the beginning
// or from the end costs one comparison: lists are sorted, so that one more session leaves the others there. Addresses
// are unique in each list.
func (t *Table) want(want []bgp.Session) (changed []bgp.Session, gone []netip.Addr) {
	was, both := t.wanted, min(len(t.wanted), len(want))
	head, tail := 0, 0
	for head < both && was[head].Equal(want[head]) {
		head++
	}
	for tail < both-head && was[len(was)-1-tail].Equal(want[len(want)-1-tail]) {
		tail++
	}
	middle := want[head : len(want)-tail]
	before := make(map[netip.Addr]*bgp.Session, len(was)-head-tail)
	for i := head; i < len(was)-tail; i++ {
		before[was[i].Address.Unmap()] = &was[i]
	}
	for _, s := range middle {
		addr := s.Address.Unmap()
		if old := before[addr]; old == nil || !old.Equal(s) {
			changed = append(changed, s)
		}
		delete(before, addr)
	}
	gone = slices.SortedFunc(maps.Keys(before), netip.Addr.Compare)
	t.wanted = slices.Replace(was, head, len(was)-tail, middle...)
	return changed, gone
}

// Reset forgets all states, because the speaker restarts.
func (t *Table) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for addr, e := range t.entries {
		if e.fsm == gobgp.BGP_FSM_ESTABLISHED {
			e.flaps++
			e.setFate(routesKept) // until the new speaker has learned them
			t.record(e, e.shown, PhaseConnecting, "the BGP speaker of this node restarts", now)
		}
		e.fsm, e.since, e.state = gobgp.BGP_FSM_IDLE, now, e.state.onReset()
		t.refresh(addr, e, now)
	}
}

// CannotRun returns why no session can run, empty if they can.
func (t *Table) CannotRun() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fatal
}

// SetFatal records why no session can run; nil if they can.
func (t *Table) SetFatal(err error) {
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
func (t *Table) change(addr netip.Addr, f func(e *entry, now time.Time)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil {
		now := time.Now()
		f(e, now)
		t.refresh(addr, e, now)
	}
}

// Configured records whether a session could be configured.
func (t *Table) Configured(addr netip.Addr, err error) {
	t.change(addr, func(e *entry, _ time.Time) {
		e.refused = ""
		if err != nil {
			e.refused = err.Error()
		}
	})
}

// Waits records the changes that wait for the end of the session; empty: none.
func (t *Table) Waits(addr netip.Addr, text string) {
	t.change(addr, func(e *entry, _ time.Time) { e.warnings.waits = text })
}

// PathMissing records that BFD has not come up since the session is established; empty: it has, or is not required.
func (t *Table) PathMissing(addr netip.Addr, text string) {
	t.mu.Lock()
	e := t.entries[addr]
	changes := e != nil && e.warnings.path != text
	t.mu.Unlock()
	if changes {
		t.change(addr, func(e *entry, _ time.Time) { e.warnings.path = text })
	}
}

// HasWaiting reports whether a change waits for the end of the session.
func (t *Table) HasWaiting(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && e.warnings.waits != ""
}

// IsEstablished reports whether a session is established.
func (t *Table) IsEstablished(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && e.fsm == gobgp.BGP_FSM_ESTABLISHED
}

// EstablishedSince returns when a session came up, a zero time if it is not established.
func (t *Table) EstablishedSince(addr netip.Addr) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil && e.fsm == gobgp.BGP_FSM_ESTABLISHED {
		return e.upAt
	}
	return time.Time{}
}

// OutsideMesh lists the peers outside of the mesh whose sessions are established.
func (t *Table) OutsideMesh() (list []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, e := range t.entries {
		if e.session.Type != bgp.SessionMesh && e.fsm == gobgp.BGP_FSM_ESTABLISHED {
			list = append(list, addr)
		}
	}
	return list
}

// PathChanged publishes a session whose BFD has changed, and returns since when it is up; zero: it is not.
func (t *Table) PathChanged(addr netip.Addr) (up time.Time) {
	t.change(addr, func(e *entry, at time.Time) {
		t.publish(e, at, false)
		if e.fsm == gobgp.BGP_FSM_ESTABLISHED {
			up = e.upAt
		}
	})
	return up
}

// BreakPath records that the path of a session is broken, with the finder, and reports whether that session is the one
// established since up.
func (t *Table) BreakPath(addr netip.Addr, up time.Time, finder, reason string) (end bool) {
	t.change(addr, func(e *entry, now time.Time) {
		if e.fsm == gobgp.BGP_FSM_ESTABLISHED && e.upAt.Equal(up) {
			e.breakPath(finder+": the path to "+e.peerName()+" is broken: "+reason, now)
			end = true
		}
	})
	return end
}

// HoldsRoutes reports whether a change of the peer's settings would cost routes: it is up, or restarts gracefully.
func (t *Table) HoldsRoutes(addr netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	return e != nil && (e.fsm == gobgp.BGP_FSM_ESTABLISHED || time.Now().Before(e.kept))
}

// Transition records a state that GoBGP reports and returns the state before and now. Before a session is established,
// the wire has more to say (Wire).
func (t *Table) Transition(addr netip.Addr, now gobgp.FSMState, at time.Time) (was gobgp.FSMState) {
	was = gobgp.BGP_FSM_IDLE
	t.change(addr, func(e *entry, _ time.Time) {
		was = e.fsm
		switch {
		case now == was:
		case now == gobgp.BGP_FSM_ESTABLISHED:
			e.fsm, e.since = now, at
			e.established(at)
		case was == gobgp.BGP_FSM_ESTABLISHED:
			e.fsm, e.since = gobgp.BGP_FSM_IDLE, at
			e.lost(at)
		}
	})
	return was
}

func (e *entry) established(at time.Time) {
	e.state = e.state.onEstablished()
	e.upAt, e.kept, e.failure.cut, e.routes = at, time.Time{}, time.Time{}, ""
	if !e.state.heldDown() {
		e.dialBy = time.Time{}
	}
}

func (e *entry) lost(at time.Time) {
	e.flaps++
	end := e.end
	if end == nil {
		end = &wire.Ended{Cause: wire.CauseLocal}
	}
	if end.Graceful {
		e.restarts++
	}
	e.setFate(routesAfter(end.Graceful))
	if e.state != ending || e.failure.at.Before(e.upAt) {
		by, words := lossWords(e, *end)
		e.fail(by, words, at)
		e.failure.unexplained = e.end == nil
	}
	e.state = e.state.onLost()
	e.upAt = time.Time{}
	e.warnings = warnings{waits: e.warnings.waits}
}
