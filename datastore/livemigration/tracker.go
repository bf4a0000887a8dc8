package livemigration

import (
	"maps"
	"time"

	"github.com/manxnet/manx/datastore/model"
)

// Phase is how far the move of a workload has come, for its routes on this node.
type Phase uint8

const (
	// None: it does not move.
	None Phase = iota
	// Leaving: it moves to another node, and runs here until that node has a route to it.
	Leaving
	// Arriving: it moves here and does not run yet. It has no route here.
	Arriving
	// Arrived: it runs here. Its route comes before those of other nodes, which may still have one.
	Arrived
)

// String returns the phase for people.
func (p Phase) String() string { return [...]string{"none", "leaving", "arriving", "arrived"}[p] }

// Role is the part of a workload in a move, by the datastore.
type Role uint8

const (
	// source: it moves away.
	source Role = iota + 1
	// destination: it moves here.
	destination
	// succeeded: it has moved here.
	succeeded
	// failed: it was to move here, and the move has failed. It never runs here.
	failed
)

// Phase is that of a workload about which nothing else is known.
func (r Role) Phase() Phase {
	switch r {
	case source:
		return Leaving
	case destination, failed:
		return Arriving
	}
	return None
}

// Tracker keeps the phases of the workloads of this node that move. Not safe for concurrent use.
type Tracker struct {
	// Settle is the time that a workload is Arrived after its move has ended.
	Settle time.Duration
	moves  map[model.Key]*move
}

// move is that of one workload, while its phase is not None.
type move struct {
	role  Role // 0: the move is unknown now
	phase Phase
	until time.Time // of the phase, once the move has ended; zero: it has not
}

// Set sets the roles of the workloads that move. runs reports whether one that is new to the tracker runs here already,
// as it may at the start of the process. Set returns whether a phase has changed.
func (t *Tracker) Set(now time.Time, roles map[model.Key]Role, runs func(model.Key) bool) (changed bool) {
	before := t.Phases()
	if t.moves == nil {
		t.moves = map[model.Key]*move{}
	}
	for k, role := range roles {
		m := t.moves[k]
		switch {
		case m == nil && role == succeeded: // long ago
		case m == nil && role == destination && runs(k):
			t.moves[k] = &move{role: role, phase: Arrived}
		case m == nil, role == source, role == failed: // of a failed move, whatever was heard: it runs elsewhere
			t.moves[k] = &move{role: role, phase: role.Phase()}
		case role != succeeded:
			m.role, m.until = role, time.Time{}
		case m.role != succeeded: // also if nothing was heard
			*m = move{role: role, phase: Arrived, until: now.Add(t.Settle)}
		}
	}
	for k, m := range t.moves {
		if roles[k] != 0 {
			continue
		}
		switch m.role {
		case source: // it stays
			delete(t.moves, k)
		case destination:
			// The migration was deleted. KubeVirt removes the pod soon if that cancelled it; otherwise the machine has
			// moved, and gets an ordinary route in the end.
			*m = move{phase: m.phase, until: now.Add(t.Settle)}
		}
	}
	return !maps.Equal(before, t.Phases())
}

// Remove forgets workloads for which keep is false.
func (t *Tracker) Remove(keep func(model.Key) bool) (changed bool) {
	n := len(t.moves)
	maps.DeleteFunc(t.moves, func(k model.Key, _ *move) bool { return !keep(k) })
	return len(t.moves) != n
}

// Heard takes note that a workload has announced itself to the network: it runs here.
func (t *Tracker) Heard(k model.Key) (changed bool) {
	m := t.moves[k]
	if m == nil || m.phase != Arriving || m.role == failed {
		return false
	}
	m.phase = Arrived
	return true
}

// Expire ends phases whose time is over.
func (t *Tracker) Expire(now time.Time) (changed bool) {
	n := len(t.moves)
	maps.DeleteFunc(t.moves, func(_ model.Key, m *move) bool { return !m.until.IsZero() && !now.Before(m.until) })
	return len(t.moves) != n
}

// Next returns the time of the next Expire, zero for none.
func (t *Tracker) Next() (next time.Time) {
	for _, m := range t.moves {
		if !m.until.IsZero() && (next.IsZero() || m.until.Before(next)) {
			next = m.until
		}
	}
	return next
}

// Phase returns that of a workload.
func (t *Tracker) Phase(k model.Key) Phase {
	if m := t.moves[k]; m != nil {
		return m.phase
	}
	return None
}

// Phases returns all but None, by workload.
func (t *Tracker) Phases() map[model.Key]Phase {
	phases := make(map[model.Key]Phase, len(t.moves))
	for k, m := range t.moves {
		phases[k] = m.phase
	}
	return phases
}
