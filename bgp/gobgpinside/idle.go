package gobgpinside

import (
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"golang.org/x/time/rate"

	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/manxnet/manx/bgp/wire"
)

// Fault: GoBGP stays in Idle for five seconds after an established session is lost, and closes the connections of the
// peer meanwhile. No setting changes that: IdleHoldTimeAfterReset counts only after an administrative reset that this
// side sends. A peer that restarts is back in a fraction of a second and has to wait, and its readiness with it. Shown
// by TestPeerThatRestartsIsTakenBackAtOnce. Can go when the time in Idle after a lost session can be set.
//
// The time is a field of the FSM (machine.go) that only the FSM's goroutine uses. On that goroutine GoBGP also sets a
// deadline in the past on its connection when it leaves Established, just before Idle. So package wire calls Lost from
// there, and no other goroutine ever reads or writes the field. It must hold GoBGP's five seconds each time; if not, it
// is left alone.

// quickReturns is how many sessions of a peer may come back at once before the peer has to wait in Idle. Another
// one is allowed for each time in Idle that passes, so that a peer which opens sessions and closes them has at most
// twice as many as GoBGP would allow.
const quickReturns = 3

// idleAfterLoss is GoBGP's time in Idle.
const idleAfterLoss = 5 * time.Second

// idleField is where GoBGP's FSM has the seconds of its next time in Idle, a float64.
const idleField = "idleHoldTime"

// Idle is the time that the FSM of one peer spends in Idle after it lost an established session.
type Idle struct {
	seconds  *float64 // in the FSM, whose goroutine alone uses it; nil: GoBGP's time is kept
	internal bool     // the peer is in this node's AS
	returns  *rate.Limiter
}

// Lost is called on the goroutine of the FSM when an established session is lost. It skips the next time in Idle if
// only the connection was lost, as with the end of the peer's process, or this side has ended the session for a reason
// that may be over soon. A NOTIFICATION of the peer or an administrator ends a session on purpose.
func (h *Idle) Lost(cause wire.Cause, now time.Time) {
	if h == nil || h.seconds == nil {
		return
	}
	switch cause {
	case wire.CauseConnection, wire.CauseReplaced:
		if !h.internal {
			return
		}
	case wire.CauseLocal:
	default:
		return
	}
	if *h.seconds == idleAfterLoss.Seconds() && h.returns.AllowN(now, 1) {
		*h.seconds = 0
	}
}

// CheckIdle returns why this GoBGP's time in Idle cannot be shortened, nil if it can. If not, all works, with GoBGP's
// time.
func CheckIdle() error { return checkIdle(reflect.TypeFor[server.BgpServer]()) }

func checkIdle(server reflect.Type) error {
	_, err := machineField[float64](server, idleField)
	if err != nil {
		return fmt.Errorf("this GoBGP keeps its time in Idle, %s, elsewhere: %w", idleAfterLoss, err)
	}
	return nil
}

// NewIdle finds the time of a peer that was just added or changed. Its session comes back at once if it is internal:
// those are the sessions with other nodes and with reflectors.
//
// A router keeps GoBGP's time. If it restarts together with a node, it ends its graceful restart when the peers that
// had not restarted are back, and then drops the routes of the node, which sends them once it has those of all nodes
// (RFC 4724 section 4.1). The other nodes must not be back with the router before the node is back with them.
func NewIdle(srv *server.BgpServer, peer netip.Addr, internal bool) *Idle {
	return &Idle{seconds: ofMachine[float64](srv, peer, idleField), internal: internal,
		returns: rate.NewLimiter(rate.Every(idleAfterLoss), quickReturns)}
}
