package speaker

import (
	"fmt"
	"net/netip"
	"reflect"
	"time"
	"unsafe"

	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire"
)

// Fault: GoBGP stays in Idle for five seconds after an established session is lost, and closes the connections of the
// peer meanwhile. No setting changes that: IdleHoldTimeAfterReset counts only after an administrative reset that this
// side sends. A peer that restarts is back in a fraction of a second and has to wait, and its readiness with it. Shown
// by TestPeerThatRestartsIsTakenBackAtOnce. Can go when the time in Idle after a lost session can be set.
//
// The time is a field of the FSM that only the FSM's goroutine uses. On that goroutine GoBGP also sets a deadline in
// the past on its connection when it leaves Established, just before Idle. So the gate calls lost from there, and no
// other goroutine ever reads or writes the field. Other goroutines read, by reflection, only the way to it:
// BgpServer.neighborMap and peer.fsm, after AddPeer has returned and with setMu held. Only AddPeer, DeletePeer and
// StopBgp write the map, and the speaker calls all three with setMu held; peer.fsm is written once, before AddPeer
// returns. The names and types on the way are checked at start, and the field must hold GoBGP's five seconds each time;
// if not, it is left alone.

// quickReturns is how many sessions of a peer may come back at once before the peer has to wait in Idle. Another
// one is allowed for each time in Idle that passes, so that a peer which opens sessions and closes them has at most
// twice as many as GoBGP would allow.
const quickReturns = 3

// idleAfterLoss is GoBGP's time in Idle.
const idleAfterLoss = 5 * time.Second

// idleHold is the time that the FSM of one peer spends in Idle after it lost an established session.
type idleHold struct {
	seconds  *float64 // in the FSM, whose goroutine alone uses it; nil: GoBGP's time is kept
	internal bool     // the peer is in this node's AS
	returns  *rate.Limiter
}

// lost is called on the goroutine of the FSM when an established session is lost. It skips the next time in Idle if
// only the connection was lost, as with the end of the peer's process, or this side has ended the session for a reason
// that may be over soon. A NOTIFICATION of the peer or an administrator ends a session on purpose.
func (h *idleHold) lost(cause wire.Cause, now time.Time) {
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

// idleOffset returns where in GoBGP's FSM the time in Idle is, in bytes, or an error if GoBGP is not built as
// expected.
func idleOffset(server reflect.Type) (uintptr, error) {
	neighbors, ok := server.FieldByName("neighborMap")
	if !ok || neighbors.Type.Kind() != reflect.Map || neighbors.Type.Key() != reflect.TypeFor[netip.Addr]() {
		return 0, fmt.Errorf("%s has no neighborMap by address", server)
	}
	peer, err := pointee(neighbors.Type.Elem())
	if err != nil {
		return 0, fmt.Errorf("neighborMap of %s: %w", server, err)
	}
	fsm, ok := peer.FieldByName("fsm")
	if !ok {
		return 0, fmt.Errorf("%s has no fsm", peer)
	}
	machine, err := pointee(fsm.Type)
	if err != nil {
		return 0, fmt.Errorf("fsm of %s: %w", peer, err)
	}
	idle, ok := machine.FieldByName("idleHoldTime")
	if !ok || idle.Type.Kind() != reflect.Float64 {
		return 0, fmt.Errorf("%s has no idleHoldTime of type float64", machine)
	}
	return idle.Offset, nil
}

func pointee(t reflect.Type) (reflect.Type, error) {
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("%s is not a pointer to a struct", t)
	}
	return t.Elem(), nil
}

// checkIdle logs whether GoBGP's time in Idle can be shortened. If not, all works, with GoBGP's time.
func checkIdle(log *zap.Logger, server reflect.Type) bool {
	_, err := idleOffset(server)
	if err != nil {
		log.Warn("bgp sessions come back "+idleAfterLoss.String()+" later after a restart of their peer: "+
			"this GoBGP keeps its time in Idle elsewhere", zap.Error(err))
	}
	return err == nil
}

// shortenIdle lets the session that was just added or changed come back at once if it is internal: those are the
// sessions with other nodes and with reflectors. setMu is held.
//
// A router keeps GoBGP's time. If it restarts together with a node, it ends its graceful restart when the peers that
// had not restarted are back, and then drops the routes of the node, which sends them once it has those of all nodes
// (RFC 4724 section 4.1). The other nodes must not be back with the router before the node is back with them.
func (r *speakerRun) shortenIdle(s bgp.Session) {
	w := s.Wire()
	if tap := r.sp.taps.of(s.Address.Unmap()); tap != nil {
		tap.idle.Store(&idleHold{seconds: idleSeconds(r.srv, w.Address), internal: w.PeerAS == w.LocalAS,
			returns: rate.NewLimiter(rate.Every(idleAfterLoss), quickReturns)})
	}
}

// idleSeconds finds the time in Idle of a peer's FSM; nil if there is no such peer, or GoBGP is not built as
// expected.
func idleSeconds(srv *server.BgpServer, addr netip.Addr) *float64 {
	offset, err := idleOffset(reflect.TypeFor[server.BgpServer]())
	if err != nil {
		return nil
	}
	peer := reflect.ValueOf(srv).Elem().FieldByName("neighborMap").MapIndex(reflect.ValueOf(addr))
	if !peer.IsValid() || peer.IsNil() {
		return nil
	}
	fsm := peer.Elem().FieldByName("fsm")
	if fsm.IsNil() {
		return nil
	}
	return (*float64)(unsafe.Add(fsm.UnsafePointer(), offset))
}
