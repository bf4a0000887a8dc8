package session

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// phaseRemoved is the phase in a Transition of a session that is not wanted any more.
const phaseRemoved Phase = "Removed"

// Transition is a change of the phase of a session, or of the reason why it is down.
type Transition struct {
	At          time.Time
	Address     netip.Addr
	RequestedBy []string // the objects that configured the session
	From, To    Phase    // From is empty if the session was new
	Lasted      time.Duration
	Reason      string
	Flaps       uint64 // as in Status, with this one
	Routes      fate   // empty unless From is PhaseEstablished
	BFD         string // state of BFD; empty: off

	unexplained bool // the wire has not reported the end of the session yet
}

// fate says what became of the peer's routes when an established session ended.
type fate string

const (
	routesKept      fate = "kept"      // for a graceful restart (RFC 4724)
	routesWithdrawn fate = "withdrawn" // at once
)

// A peer that flaps loses its own oldest transitions, not those of other sessions: a full list drops the oldest one of
// a session that has most.
const (
	mostOfSession   = 32
	mostTransitions = 4096
	longestReason   = 512 // bytes: a peer decides about a part of it
)

// history has the last transitions of all sessions, oldest first. Transitions of removed sessions stay.
type history struct {
	list []*Transition
	of   map[netip.Addr]int
}

func (h *history) add(x *Transition) {
	switch {
	case h.of[x.Address] == mostOfSession:
		h.drop(slices.IndexFunc(h.list, func(o *Transition) bool { return o.Address == x.Address }))
	case len(h.list) == mostTransitions:
		most := slices.Max(slices.Collect(maps.Values(h.of)))
		h.drop(slices.IndexFunc(h.list, func(o *Transition) bool { return h.of[o.Address] == most }))
	}
	h.list = append(h.list, x)
	h.of[x.Address]++
}

func (h *history) drop(i int) {
	addr := h.list[i].Address
	h.list = slices.Delete(h.list, i, i+1)
	if h.of[addr]--; h.of[addr] == 0 {
		delete(h.of, addr)
	}
}

// History returns the last transitions of the session with an address, or of all sessions if it is invalid, oldest
// first: at most 32 of each session, and 4096 in all.
func (t *Table) History(addr netip.Addr) (list []Transition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.history.list {
		if !addr.IsValid() || x.Address == addr {
			list = append(list, *x)
		}
	}
	return list
}

// record adds a transition to the history: was is the status before. Between two attempts to connect, only another
// reason of a failure is one.
func (t *Table) record(e *entry, was shown, to Phase, reason string, now time.Time) {
	from, began := was.phase, was.since
	if e.last != nil {
		from, began = e.last.To, e.began
	}
	if len(reason) > longestReason {
		reason = strings.ToValidUTF8(reason[:longestReason], "") + "..."
	}
	switch {
	case from == to && to != PhaseFailed && to != PhaseRefused:
		return
	case from == to && e.last != nil && e.last.unexplained:
		e.last.Reason, e.last.Routes, e.last.unexplained = reason, e.routes, false
		return
	}
	x := &Transition{At: now, Address: e.session.Address.Unmap(), RequestedBy: e.session.From, From: from, To: to,
		Reason: reason, Flaps: e.flaps - e.cleared.flaps}
	if !began.IsZero() {
		x.Lasted = now.Sub(began)
	}
	e.began = began
	if from != to { // another reason begins no phase
		e.began = now
	}
	if from == PhaseEstablished {
		x.Routes, x.unexplained = e.routes, e.failure.unexplained && to == PhaseFailed
	}
	if e.session.BFD.Enabled && t.cfg.Path != nil {
		if b, ok := t.cfg.Path(x.Address); ok {
			x.BFD = b.State.String()
		}
	}
	e.last = x
	t.history.add(x)
}

// setFate records what becomes of the peer's routes, also in a transition that came before the end of the session, as
// when its settings are refused, or before the wire said how it ended.
func (e *entry) setFate(f fate) {
	e.routes = f
	if x := e.last; x != nil && x.From == PhaseEstablished && (x.Routes == "" || e.failure.unexplained) {
		x.Routes = f
	}
}

// routesAfter returns what becomes of the peer's routes at the end of a session.
func routesAfter(graceful bool) fate {
	if graceful {
		return routesKept
	}
	return routesWithdrawn
}
