package speaker

import (
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// GoBGP tells nobody when it connects next, but keeps to times of its own: after a loss it is idle (unless idleHold
// cuts that short), then it connects for the first time, and after each failure it waits for ConnectRetry. The times
// below are the longest of each wait.
const (
	idleAfterLoss = 5 * time.Second
	firstDial     = 2 * time.Second
)

// expectDial notes when GoBGP connects next, now that the session has changed its state at a time.
func (e *sessionEntry) expectDial(was gobgp.FSMState, at time.Time) {
	switch {
	case e.state == was, !e.held.IsZero(): // held down, GoBGP does not connect
	case e.state == gobgp.BGP_FSM_ACTIVE:
		e.dialBy = at.Add(firstDial)
	case e.state == gobgp.BGP_FSM_IDLE:
		e.dialBy = at.Add(idleAfterLoss + firstDial)
	default:
		e.dialBy = time.Time{}
	}
}

// nextAttempt is when this side connects next at the latest, zero if that is up to the peer or nothing is to be
// awaited.
func (e *sessionEntry) nextAttempt() time.Time {
	switch {
	case e.phase != PhaseFailed && e.phase != PhaseConnecting, e.session.Passive && e.held.IsZero(),
		!e.connectedAt.IsZero():
		return time.Time{}
	}
	return e.dialBy
}
