package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// This file holds parts that exist only because of faults of GoBGP v4.8.0. Each names the fault, the test that shows
// it, and when the part can go. So do the comments about a fault in other files, where the part belongs to something
// larger (TestFaultsOfGoBGPAreShown). Other faults are avoided by how the speaker is built:
//
//   - UpdatePeer forgets that the peer restarts gracefully: setSession never calls it without a difference and
//     defers timers (TestUnchangedSessionsRunOn).
//   - UpdatePeer ignores a change of RouteReflector: bgp.CompareSessions asks for delete and add (TestCompareSessions).
//   - AddDefinedSet with Replace does not reach statements: setPolicy replaces everything at once
//     (TestExportRulesChange).
//   - A hard reset of a session that is down kills the next one: allowReset, ResetSession
//     (TestHardResetOnlyWhenEstablished).
// - Two active ends can block each other for ever: package bgp makes exactly one of two Manx nodes active
// (TestBothEndsAgree).
//
// Those that are too big for this file have one of their own, with the same three facts:
//
//   - A peer that was lost is kept out for five seconds, also when it only restarts: back.go.
//   - A NOTIFICATION that answers our OPEN is told to nobody: tap.go.
//   - A reflected route that comes back can become the best: reflect.go.
//   - The withdrawal of a route that the policy rejects since it changed is lost: recheck.go.

// watchdog replaces peers that are stuck in the OPEN exchange.
//
// Fault: in OpenConfirm GoBGP uses the hold time of the previous session, which is 0 before the first one, so that a
// peer that sends an OPEN and falls silent holds the session for ever, and new connections of it are reset.
// Shown by TestSilentPeerIsReplaced. Can go when OpenConfirm has a hold timer of its own and OpenSent a short one.
func (s *Speaker) watchdog(now time.Time) {
	for _, addr := range s.status.stuck(now) {
		s.replacePeer(addr, "session is stuck in the OPEN exchange and is started afresh")
	}
	for _, addr := range s.status.heldUntil(now) {
		s.replacePeer(addr, "session is tried again after too many prefixes")
	}
}

// prefixLevel acts on the number of prefixes that a peer announces.
//
// Fault: GoBGP's own prefix limit walks all routes of the peer for every UPDATE, which makes 100,000 routes ten times
// slower (BenchmarkIngest), and after its Cease keeps the routes as those of a peer that restarts.
// Shown by TestMaxPrefixesHoldsTheSessionDown. Can go when GoBGP counts, and drops the routes.
func (s *Speaker) prefixLevel(peer netip.Addr, level prefixLevel, l limit) {
	s.status.change(peer.Unmap(), func(e *sessionEntry, now time.Time) {
		switch level {
		case prefixesNormal:
			e.many = ""
		case prefixesMany:
			e.many = fmt.Sprintf("the peer announces more than %d prefixes; above %d the session is shut down", l.warn,
				l.most)
		case prefixesTooMany:
			if e.held.IsZero() && e.state == gobgp.BGP_FSM_ESTABLISHED {
				e.held, e.dialBy = now, now.Add(s.cfg.PrefixHold)
				e.fail(DirectionSent, fmt.Sprintf("%s announced more than %d prefixes; the session is held down for %s",
					e.peerName(), l.most, s.cfg.PrefixHold), now)
				go s.shutDown(peer, fmt.Sprintf("more than %d prefixes", l.most))
			}
		}
	})
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

func (t *statusTable) stuck(now time.Time) (list []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, e := range t.entries {
		opening := e.state == gobgp.BGP_FSM_OPENSENT || e.state == gobgp.BGP_FSM_OPENCONFIRM
		waiting := !e.connectedAt.IsZero() && now.Sub(e.connectedAt) > t.cfg.OpenTimeout
		if opening && now.Sub(e.since) > t.cfg.OpenTimeout || waiting {
			e.since, e.connectedAt = now, time.Time{}
			why := fmt.Sprintf("%s is connected but did not finish the OPEN exchange within %s", e.peerName(),
				t.cfg.OpenTimeout)
			if hops := e.session.TTLSecurity; hops != 0 {
				why += fmt.Sprintf(": it may be more than %d hops away, or send with a TTL below 255 (ttlSecurity)",
					hops)
			}
			e.symptom(DirectionLocal, why, now)
			t.refresh(addr, e, now)
			list = append(list, addr)
		}
	}
	return list
}

// heldUntil returns the peers whose time of punishment is over. GoBGP itself leaves a peer that exceeded its
// prefix limit down until somebody enables it.
func (t *statusTable) heldUntil(now time.Time) (list []netip.Addr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for addr, e := range t.entries {
		if !e.held.IsZero() && now.Sub(e.held) > t.cfg.PrefixHold {
			e.held = time.Time{}
			list = append(list, addr)
		}
	}
	return list
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
		delete(s.run.sessions, addr) // the next Set adds it
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
// Fault: GoBGP sends its routes to a new session before it marks the session as established, and routes that change
// between the two are sent to nobody: the peer lacks them until they change again. It is a matter of microseconds
// on an idle machine, but a restart of a busy node brings all sessions up while routes pour in.
// Shown by TestRouteLearnedWhileASessionComesUp (seen with the race detector; needToAdvertise and handleFSMMessage in
// GoBGP's server.go). Can go when the state is set before the first routes are collected.
func (s *Speaker) sendAgain(addr netip.Addr) {
	time.AfterFunc(time.Second, func() {
		run := s.current()
		if run == nil || s.ctx.Err() != nil || !s.status.isEstablished(addr) {
			return
		}
		if s.status.changes(addr) == s.fib.changesByOthers(addr) {
			return // nothing can be lost; to look at each route while a peer sends a full table would be dear
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

// setChanges notes how many changes of routes there were when a session was last seen on its way up.
func (t *statusTable) setChanges(addr netip.Addr, n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil {
		e.changes = n
	}
}

func (t *statusTable) changes(addr netip.Addr) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[addr]; e != nil {
		return e.changes
	}
	return 0
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

// protected tells, after a peer was added or changed, whether the listener has its MD5 key, and removes the peer if
// not.
//
// Fault: AddPeer only logs that the kernel refuses the key (net.core.optmem_max is used up, for instance), so that
// anybody with the peer's address could open the session without a password.
// Shown by TestKeyThatTheKernelRefuses. Can go when AddPeer returns the error.
func (r *speakerRun) protected(ctx context.Context, s bgp.Session) error {
	addr := s.Address.Unmap()
	why := r.sp.status.takeUnprotected(addr)
	if why == "" || s.Password == "" {
		return nil
	}
	delete(r.sessions, addr) // the next Set adds it
	delete(r.deferred, addr)
	err := r.srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()})
	return errors.Join(fmt.Errorf("%s; without its password the session stays down", why), err)
}

// takeUnprotected returns why the listener has no key for a peer, once; empty if it has one.
func (t *statusTable) takeUnprotected(addr netip.Addr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[addr]
	if e == nil {
		return ""
	}
	why := e.unprotected
	e.unprotected = ""
	return why
}
