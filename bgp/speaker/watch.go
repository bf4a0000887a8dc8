package speaker

import (
	"context"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
)

// watch feeds the table of learned routes and the session states from one subscription, so that the End-of-RIB of
// a peer is never seen before its routes.
func (r *speakerRun) watch(ctx context.Context) error {
	live := func() bool { return ctx.Err() == nil }
	return r.srv.WatchEvent(ctx, server.WatchEventMessageCallbacks{
		OnBestPath: func(paths []*apiutil.Path, _ time.Time) {
			if len(paths) > 0 && live() {
				r.recheck(paths, r.mayReplace)
				r.leaves(paths)
				r.sp.fib.Update(paths)
				r.yieldTo(paths)
			}
		},
		OnPathEor: func(eor *apiutil.Path, _ time.Time) {
			if addr := eor.PeerAddress.Unmap(); addr.IsValid() && live() && !r.gate.Injected(addr) {
				r.sp.sync.forget(addr)
			}
		},
		OnPeerUpdate: func(ev *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
			if ev.Peer.State.NeighborAddress.IsValid() && live() {
				r.sp.peerEvent(ev, at)
			}
		},
	}, server.WatchBestPath(true), server.WatchEor(true), server.WatchPeer())
}

func (s *Speaker) peerEvent(ev *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	st := ev.Peer.State
	addr := st.NeighborAddress.Unmap()
	if at.IsZero() {
		at = time.Now()
	}
	now := st.SessionState
	was := s.status.Transition(addr, now, at)
	if tap := s.taps.of(addr); tap != nil && now != gobgp.BGP_FSM_ESTABLISHED {
		tap.changes.Store(s.fib.ChangesByOthers(addr))
	}
	if run := s.current(); run != nil {
		run.gate.Ready(addr, now == gobgp.BGP_FSM_ACTIVE && !s.withhold(addr, now))
	}
	switch {
	case now == gobgp.BGP_FSM_ESTABLISHED && was != now:
		s.sync.established(addr, s.waitsForNothing(addr), at)
		s.sendAgain(addr)
		s.findUplink(addr)
	case was == gobgp.BGP_FSM_ESTABLISHED && now != was:
		s.sync.lost(addr)
	}
	if now != gobgp.BGP_FSM_ESTABLISHED && s.status.HasWaiting(addr) {
		go s.applyDeferred(addr) // a change of GoBGP from its callback could wait for itself
	}
}

// waitsForNothing reports whether no End-of-RIB waits for that of a peer: it announces no graceful restart, or has
// restarted, too (RFC 4724 section 4.1).
func (s *Speaker) waitsForNothing(addr netip.Addr) bool {
	run := s.current()
	if run == nil {
		return false
	}
	o := run.gate.Offered(addr)
	return o != nil && (!o.Graceful || o.Restarted)
}
