package speaker

import (
	"net/netip"
	"time"

	"go.uber.org/zap"
)

// This file holds parts that exist only because of faults of GoBGP v4.8.0. Each names the fault, the test that shows
// it, and when the part can go. So do the comments about a fault in other files, where the part belongs to something
// larger (TestFaultsOfGoBGPAreShown). The design of the speaker avoids other faults:
//
//   - UpdatePeer forgets that the peer restarts gracefully: setSession never calls it without a difference and
//     defers timers (TestUnchangedSessionsRunOn).
//   - UpdatePeer ignores a change of RouteReflector: bgp.CompareSessions requires delete and add (TestCompareSessions).
//   - AddDefinedSet with Replace does not reach statements: setPolicy replaces everything at once
//     (TestExportRulesChange).
//   - A hard reset of a session that is down kills the next one: allowReset, ResetSession
//     (TestHardResetOnlyWhenEstablished).
//
// Those that are too big for this file have one of their own, with the same three facts:
//
//   - A reflected route that comes back can become the best: bgp/fib/peers.go.
//   - The withdrawal of a route that the policy rejects since it changed is lost: recheck.go.
//
// All that needs the inside of GoBGP is in package gobgpinside. docs/gobgp.md lists both kinds.

// again has Set called again.
func (s *Speaker) again() {
	if s.cfg.Again != nil {
		s.cfg.Again()
	}
}

// sendAgain sends a peer all routes once more, a second after its session came up, if any changed meanwhile.
//
// Fault: GoBGP sends its routes to a new session before it marks the session as established. Routes that change between
// the two are not sent: the peer lacks them until they change again. The gap lasts microseconds on an idle machine, but
// a restart of a busy node brings all sessions up while routes pour in. Shown by TestRouteLearnedWhileASessionComesUp
// (seen with the race detector; needToAdvertise and handleFSMMessage in GoBGP's server.go). Can go when the state is
// set before the first routes are collected.
func (s *Speaker) sendAgain(addr netip.Addr) {
	time.AfterFunc(time.Second, func() {
		run := s.current()
		if run == nil || s.ctx.Err() != nil || !s.status.IsEstablished(addr) {
			return
		}
		if tap := s.taps.of(addr); tap == nil || tap.changes.Load() == s.fib.ChangesByOthers(addr) {
			return // nothing can be lost; a check of each route while a peer sends a full table would be dear
		}
		if err := s.reset(s.ctx, addr, ResetSoftOut); err != nil {
			s.log.Debug("routes are not sent again", zap.Stringer("peer", addr), zap.Error(err))
		}
	})
}
