package session

import (
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// GoBGP does not report when it connects next, but uses times of its own: after a loss it is idle (unless idleHold
// shortens that), then it connects for the first time, and after each failure it waits for ConnectRetry. The times
// below are the longest of each wait. Idle comes first, the first attempt to connect after it.
const (
	IdleAfterLoss = 5 * time.Second
	FirstDial     = 2 * time.Second
)

// expectDial records when GoBGP connects next, after a change of the session's state at a time.
func (e *entry) expectDial(was gobgp.FSMState, at time.Time) {
	switch {
	case e.fsm == was, e.state.heldDown(): // held down, GoBGP does not connect
	case e.fsm == gobgp.BGP_FSM_ACTIVE:
		e.dialBy = at.Add(FirstDial)
	case e.fsm == gobgp.BGP_FSM_IDLE:
		e.dialBy = at.Add(IdleAfterLoss + FirstDial)
	default:
		e.dialBy = time.Time{}
	}
}

// nextAttempt returns when this side connects next at the latest, zero if that is up to the peer or no attempt is
// expected.
func (e *entry) nextAttempt() time.Time {
	switch {
	case e.shown.phase != PhaseFailed && e.shown.phase != PhaseConnecting, e.session.Passive && !e.state.heldDown(),
		!e.connectedAt.IsZero():
		return time.Time{}
	}
	return e.dialBy
}
