package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
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
//   - Two active ends can block each other for ever: package bgp makes exactly one of two Manx nodes active
//     (TestBothEndsAgree).
//
// Those that are too big for this file have one of their own, with the same three facts:
//
//   - A peer that was lost is kept out for five seconds, also when it only restarts: idle.go.
//   - A NOTIFICATION that answers our OPEN is not reported: bgp/session/notification.go.
//   - A reflected route that comes back can become the best: bgp/fib/clusterlist.go.
//   - The withdrawal of a route that the policy rejects since it changed is lost: recheck.go.
//   - After a failure to accept a connection, none is ever accepted again: accept.go.

// watchdog replaces peers that are stuck in the OPEN exchange.
//
// Fault: in OpenConfirm GoBGP uses the hold time of the previous session, which is 0 before the first one, so that a
// peer that sends an OPEN and falls silent holds the session for ever, and new connections of it are reset.
// Shown by TestSilentPeerIsReplaced. Can go when OpenConfirm has a hold timer of its own and OpenSent a short one.
func (s *Speaker) watchdog(now time.Time) {
	for _, addr := range s.status.Stuck(now) {
		s.replacePeer(addr, "session is stuck in the OPEN exchange and is started afresh")
	}
	for _, addr := range s.status.Held(now) {
		s.replacePeer(addr, "session is tried again after too many prefixes")
	}
}

// prefixLevel acts on the number of prefixes that a peer announces.
//
// Fault: GoBGP's own prefix limit walks all routes of the peer for every UPDATE, which makes 100,000 routes ten times
// slower (BenchmarkIngest), and after its Cease keeps the routes as those of a peer that restarts.
// Shown by TestMaxPrefixesHoldsTheSessionDown. Can go when GoBGP counts, and drops the routes.
func (s *Speaker) prefixLevel(peer netip.Addr, level prefixLevel, l limit) {
	peer = peer.Unmap()
	switch level {
	case prefixesNormal:
		s.status.WarnOfPrefixes(peer, "")
	case prefixesMany:
		s.status.WarnOfPrefixes(peer, fmt.Sprintf("the peer announces more than %d prefixes; above %d the session is "+
			"shut down", l.warn, l.most))
	case prefixesTooMany:
		why := fmt.Sprintf("more than %d prefixes", l.most)
		if s.status.Hold(peer, why) {
			go s.shutDown(peer, why)
		}
	}
}

// shutDown ends an established session and keeps it down until its peer is replaced.
func (s *Speaker) shutDown(peer netip.Addr, why string) {
	run := s.current()
	if run == nil {
		return
	}
	if err := run.srv.DisablePeer(s.ctx, &api.DisablePeerRequest{Address: peer.String(),
		Communication: why}); err != nil {
		s.log.Warn("bgp session cannot be shut down", zap.Stringer("peer", peer), zap.Error(err))
	}
}

// replacePeer deletes a peer and adds it again. Disabling and enabling would leave it down if the second request
// comes before the first is done, and would wait five seconds more.
func (s *Speaker) replacePeer(addr netip.Addr, why string) {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	if s.run == nil {
		return
	}
	session, ok := s.run.sessions[addr]
	if !ok {
		return
	}
	s.run.log(session).Warn(why)
	synced, _ := s.sync.state(time.Now())
	if err := s.run.srv.DeletePeer(s.ctx, &api.DeletePeerRequest{Address: addr.String()}); err != nil {
		s.run.log(session).Warn("bgp session cannot be removed", zap.Error(err))
		return
	}
	if err := s.run.srv.AddPeer(s.ctx, &api.AddPeerRequest{Peer: s.cfg.peerConfig(session, !synced)}); err != nil {
		s.run.log(session).Warn("bgp session cannot be added again", zap.Error(err))
		s.run.missing(addr)
		s.again()
		return
	}
	if err := s.run.protected(s.ctx, session); err != nil {
		s.run.log(session).Warn("bgp session cannot be added again", zap.Error(err))
		s.again()
		return
	}
	s.run.shortenIdle(session)
}

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
		restarting := false
		err := run.srv.ListPeer(s.ctx, &api.ListPeerRequest{Address: addr.String()}, func(p *api.Peer) {
			restarting = p.GetGracefulRestart().GetLocalRestarting()
		})
		// after a restart, everything is sent later, long after the session is established
		if err != nil || restarting {
			return
		}
		if err := s.reset(s.ctx, addr, ResetSoftOut); err != nil {
			s.log.Debug("routes are not sent again", zap.Stringer("peer", addr), zap.Error(err))
		}
	})
}

// forgetPassword removes the MD5 key of a peer from the listener. The peer is disabled with it: it must not come up
// without its password in the moment before it is deleted.
//
// Fault: DeletePeer leaves the key on the listening socket; a later session without password with the same address
// never comes up. Shown by TestPasswordRemoved. Can go when DeletePeer removes the key.
func (r *speakerRun) forgetPassword(ctx context.Context, s bgp.Session) error {
	if s.Password == "" {
		return nil
	}
	s.Password = ""
	p := r.sp.cfg.peerConfig(s, false)
	p.Conf.AdminDown = true
	_, err := r.srv.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: p})
	return err
}

// protected checks, after a peer was added or changed, whether the listener has its MD5 key, and removes the peer if
// not.
//
// Fault: AddPeer only logs that the kernel refuses the key (net.core.optmem_max is used up, for instance), so that any
// host with the peer's address could open the session without a password. Shown by TestKeyThatTheKernelRefuses. Can go
// when AddPeer returns the error.
func (r *speakerRun) protected(ctx context.Context, s bgp.Session) error {
	addr := s.Address.Unmap()
	why := r.sp.status.TakeUnprotected(addr)
	if why == "" || s.Password == "" {
		return nil
	}
	r.missing(addr)
	err := r.srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()})
	return errors.Join(fmt.Errorf("%s; without its password the session stays down", why), err)
}
