package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgpinside"
)

const addPathSendMax = 64

func gobgpFamily(a netip.Addr) *api.Family {
	if a.Unmap().Is4() {
		return &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	}
	return &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
}

// peerConfig translates a session for GoBGP, which never knows that this side restarts: it would send nothing until
// all peers have sent their routes. Package wire sends the flags of OPENs, and holds the End-of-RIB back.
func (c Config) peerConfig(s bgp.Session) *api.Peer {
	w := s.Wire()
	family := gobgpFamily(w.Address)
	p := &api.Peer{
		// No description: a change of it would restart the session.
		Conf: &api.PeerConf{
			NeighborAddress: w.Address.String(),
			LocalAsn:        w.LocalAS,
			PeerAsn:         w.PeerAS,
			AllowOwnAsn:     w.AllowOwnAS,
		},
		Transport: &api.Transport{
			RemotePort:  uint32(w.Port), // for `gobgp neighbor`
			PassiveMode: true,           // package wire connects
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:               uint64(w.Hold),
			KeepaliveInterval:      uint64(w.Keepalive),
			IdleHoldTimeAfterReset: 1,
		}},
		GracefulRestart: &api.GracefulRestart{
			Enabled:     true,
			RestartTime: w.Restart,
		},
		AfiSafis: []*api.AfiSafi{{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
			AddPaths:          &api.AddPaths{Config: &api.AddPathsConfig{Receive: true, SendMax: addPathSendMax}},
		}},
	}
	if w.Source.IsValid() {
		p.Transport.LocalAddress = w.Source.Unmap().String()
	}
	if w.TTLSecurity != 0 {
		p.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 256 - uint32(w.TTLSecurity)}
	} else {
		p.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(w.TTL)}
	}
	if w.ReflectorClient {
		p.RouteReflector = &api.RouteReflector{RouteReflectorClient: true,
			RouteReflectorClusterId: addrText(w.ReflectorClusterID)}
	}
	return p
}

func checkSession(s bgp.Session, g bgp.Global) error {
	switch {
	case s.PasswordFrom == "missing":
		return fmt.Errorf("%s; without its password the session stays down", s.PasswordError)
	case !s.Address.IsValid() || s.Address.IsUnspecified() || s.Address.IsMulticast():
		return fmt.Errorf("peer address %q is not a unicast address", addrText(s.Address))
	case s.PeerAS == 0:
		return errors.New("AS of the peer is 0 or unknown; want 1 to 4294967295")
	case s.Source.IsValid() && s.Source.Unmap() == s.Address.Unmap():
		return fmt.Errorf("source address %s is the address of the peer", s.Source)
	case s.Source.IsValid() && s.Source.Unmap().Is4() != s.Address.Unmap().Is4():
		return fmt.Errorf("source address %s is of another family than the peer", s.Source)
	case s.Passive && g.ListenPort == 0:
		return errors.New("the peer should connect to us, but the speaker does not listen (listen port 0)")
	case s.Passive && s.Source.IsValid() && !listensOn(g, s.Source):
		return fmt.Errorf("the peer should connect to %s, but the speaker listens on %v only", s.Source,
			g.ListenAddresses)
	}
	return nil
}

func listensOn(g bgp.Global, a netip.Addr) bool {
	if len(g.ListenAddresses) == 0 {
		return true
	}
	for _, l := range g.ListenAddresses {
		if l.Unmap() == a.Unmap() || l.IsUnspecified() && l.Unmap().Is4() == a.Unmap().Is4() {
			return true
		}
	}
	return false
}

// setSessions adds, changes and removes peers so that they are as wanted. Only pending and obsolete ones are touched;
// those for which that fails stay so.
func (r *speakerRun) setSessions(ctx context.Context, want []bgp.Session) error {
	var errs []error
	for addr := range r.obsolete {
		if s, exists := r.sessions[addr]; exists {
			if err := r.removeSession(ctx, s); err != nil {
				errs = append(errs, fmt.Errorf("bgp session with %s: remove: %w", addr, err))
				continue
			}
		}
		delete(r.obsolete, addr)
	}
	for i := range want {
		if len(r.pending) == 0 {
			break
		}
		s := &want[i]
		addr := s.Address.Unmap()
		if !r.pending[addr] {
			continue
		}
		err := r.setSession(ctx, *s)
		if _, waits := r.deferred[addr]; err == nil && !waits {
			delete(r.pending, addr)
		}
		if err != nil && s.PasswordFrom != "missing" { // no further attempt helps before there is a password
			err = fmt.Errorf("bgp session with %s: %w", s.Address, err)
			errs = append(errs, err)
		}
		r.sp.status.Configured(addr, err)
	}
	r.restarting = false // later routes are new to the network
	return errors.Join(errs...)
}

func (r *speakerRun) setSession(ctx context.Context, s bgp.Session) error {
	addr := s.Address.Unmap()
	old, exists := r.sessions[addr]
	if err := checkSession(s, r.global); err != nil {
		if exists && s.PasswordFrom == "missing" { // it may have had none, or one that counts no more
			return errors.Join(err, r.removeSession(ctx, old))
		}
		return err
	}
	if !exists {
		return r.addSession(ctx, s)
	}
	r.forgetDeferred(addr)
	switch change := bgp.CompareSessions(old, s); {
	case change == bgp.ChangeNone:
		r.sessions[addr] = s
		return nil
	case change == bgp.ChangeDefer && r.sp.status.HoldsRoutes(addr):
		r.deferred[addr] = s
		r.sp.status.Waits(addr, "new timers take effect with the next session")
		return nil
	case change == bgp.ChangeReplace:
		r.log(s).Info("bgp session is replaced because its reflector settings change")
		if err := r.removeSession(ctx, old); err != nil {
			return err
		}
		return r.addSession(ctx, s)
	default:
		r.log(s).Info("bgp session restarts because its settings change")
		return r.changeSession(ctx, s)
	}
}

// changeSession replaces the settings of a session, which ends it.
func (r *speakerRun) changeSession(ctx context.Context, s bgp.Session) error {
	addr := s.Address.Unmap()
	before, after := r.sp.cfg.peerConfig(r.sessions[addr]), r.sp.cfg.peerConfig(s)
	if !proto.Equal(before, after) { // without a difference, UpdatePeer would still lose state
		if _, err := r.srv.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: after}); err != nil {
			return err
		}
	}
	r.sessions[addr] = s
	r.mendMachine(s)
	if err := r.connect(s); err != nil {
		return errors.Join(err, r.removeSession(ctx, s))
	}
	return nil
}

// connect has the connections of a session made, or made anew, as soon as GoBGP is ready for one. If the session cannot
// be protected with its password, there is none.
func (r *speakerRun) connect(s bgp.Session) error {
	err := r.gate.Set(wirePeer(s), r.sp.cfg.limit(s), &r.sp.taps.of(s.Address.Unmap()).received)
	if err != nil {
		return fmt.Errorf("%w; without its password the session stays down", err)
	}
	if addr := s.Address.Unmap(); r.sp.status.IsHeld(addr) { // since before the speaker started
		r.gate.Hold(addr)
	}
	return nil
}

func (r *speakerRun) addSession(ctx context.Context, s bgp.Session) error {
	addr, restarting := s.Address.Unmap(), r.restarting
	r.sp.taps.of(addr).restarting.Store(restarting)
	if err := r.connect(s); err != nil { // before GoBGP reports for the first time that it is ready
		return err
	}
	if err := r.addPeer(ctx, s); err != nil {
		r.gate.Remove(addr)
		return err
	}
	r.sessions[addr] = s
	r.log(s).Info("bgp session configured", zap.Uint32("peerAS", s.PeerAS), zap.Bool("passive", s.Passive),
		zap.Bool("restarting", restarting))
	return nil
}

// addPeer adds the peer to GoBGP. Its FSM waits before its first session until it is mended.
func (r *speakerRun) addPeer(ctx context.Context, s bgp.Session) error {
	adding := &r.sp.taps.of(s.Address.Unmap()).adding
	adding.Lock()
	defer adding.Unlock()
	if err := r.srv.AddPeer(ctx, &api.AddPeerRequest{Peer: r.sp.cfg.peerConfig(s)}); err != nil {
		return err
	}
	r.mendMachine(s)
	return nil
}

// mendMachine mends the FSM of a session that was just added or changed. setMu is held.
func (r *speakerRun) mendMachine(s bgp.Session) {
	tap := r.sp.taps.of(s.Address.Unmap())
	if tap == nil {
		return
	}
	w := s.Wire()
	tap.idle.Store(gobgpinside.NewIdle(r.srv, w.Address, w.PeerAS == w.LocalAS))
	tap.outgoing.Store(gobgpinside.NewOutbox(r.srv, w.Address, tap.outgoing.Load()))
}

func (r *speakerRun) removeSession(ctx context.Context, s bgp.Session) error {
	addr := s.Address.Unmap()
	if err := r.srv.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()}); err != nil {
		return err
	}
	r.gate.Remove(addr)
	delete(r.sessions, addr)
	r.forgetDeferred(addr)
	r.sp.sync.forget(addr)
	r.log(s).Info("bgp session removed")
	return nil
}

// applyDeferred configures the changes that had to wait until the session was down.
func (s *Speaker) applyDeferred(addr netip.Addr) {
	s.setMu.Lock()
	defer s.setMu.Unlock()
	if s.run == nil || s.status.HoldsRoutes(addr) {
		return
	}
	want, ok := s.run.deferred[addr]
	if !ok {
		return
	}
	if err := s.run.changeSession(s.ctx, want); err != nil {
		s.log.Warn("bgp session: new timers cannot be set", zap.Stringer("peer", addr), zap.Error(err))
		s.again()
		return
	}
	s.run.forgetDeferred(addr)
}

// forgetDeferred records that no change of a session waits for its end.
func (r *speakerRun) forgetDeferred(addr netip.Addr) {
	if _, waits := r.deferred[addr]; waits {
		delete(r.deferred, addr)
		r.sp.status.Waits(addr, "")
	}
}

func (r *speakerRun) log(s bgp.Session) *zap.Logger {
	return r.sp.log.With(zap.String("target", "bgp-session"), zap.String("key", s.Address.String()))
}
