package speaker

import (
	"context"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/wire"
)

// newGate makes the owner of the connections of a run.
func (s *Speaker) newGate(g bgp.Global) *wire.Gate {
	return wire.New(wire.Config{
		RouterID: g.RouterID, ConnectRetry: s.cfg.ConnectRetry, OpenTimeout: s.cfg.OpenTimeout,
		HandOver: s.handOver,
		Event:    func(peer netip.Addr, e wire.Event) { s.status.Wire(peer.Unmap(), e) },
		Stranger: func(remote, local netip.Addr) {
			if s.status.Stranger(remote, time.Now()) {
				s.log.Info("a host without a bgp session connects, and is refused", zap.Stringer("from", remote),
					zap.Stringer("to", local))
			}
		},
		Accepting: s.acceptingChanged,
		Restarting: func(peer netip.Addr) bool {
			tap := s.taps.of(peer.Unmap())
			synced, _ := s.sync.state(time.Now())
			return tap != nil && tap.restarting.Load() && !synced
		},
		Deferring: func() bool { return s.sync.deferring(time.Now()) },
		Deferral:  s.cfg.RestartDeferral,
		Waiting: func(peer netip.Addr) bool {
			tap := s.taps.of(peer.Unmap())
			return tap != nil && tap.outgoing.Load().Waiting() > 0
		},
		Forwarding: s.cfg.Forwarding,
		Opening: func(peer netip.Addr, paths bool) {
			if tap := s.taps.of(peer.Unmap()); tap != nil {
				tap.adding.Lock()
				defer tap.adding.Unlock()
				tap.outgoing.Load().Begin(paths)
			}
		},
		Writing: func(peer netip.Addr) {
			if tap := s.taps.of(peer.Unmap()); tap != nil {
				tap.outgoing.Load().Writes()
			}
		},
		Leaving: func(peer netip.Addr, cause wire.Cause) {
			if tap := s.taps.of(peer.Unmap()); tap != nil {
				tap.idle.Load().Lost(cause, time.Now())
			}
		},
	})
}

// handOver passes an established connection to GoBGP.
func (s *Speaker) handOver(ctx context.Context, conn net.Conn) {
	run := s.current()
	if run == nil {
		_ = conn.Close()
		return
	}
	select {
	case run.conns <- conn:
		if ctx.Err() != nil { // nobody may be left who takes it
			closeWaiting(run.conns)
		}
	case <-ctx.Done():
		_ = conn.Close()
	}
}

// closeWaiting closes the connections that a server which stops has not taken.
func closeWaiting(conns <-chan net.Conn) {
	for {
		select {
		case c := <-conns:
			_ = c.Close()
		default:
			return
		}
	}
}

func (s *Speaker) acceptingChanged(address netip.AddrPort, err error) {
	log := s.log.With(zap.Stringer("address", address))
	if err != nil {
		log.Error("bgp connections of peers are not accepted; trying again each second", zap.Error(err))
		return
	}
	log.Info("bgp connections of peers are accepted again")
}

// wirePeer has the settings of a session that concern the wire.
func wirePeer(s bgp.Session) wire.Peer {
	w := s.Wire()
	p := wire.Peer{Address: w.Address.Unmap(), Port: w.Port, Passive: w.Passive, Source: w.Source, Password: w.Password,
		LocalAS: w.LocalAS, PeerAS: w.PeerAS, Hold: uint16(w.Hold), Keepalive: uint16(w.Keepalive),
		RestartTime: uint16(w.Restart), Unrecorded: w.ReflectorClient}
	switch {
	case w.TTLSecurity != 0: // RFC 5082
		p.TTL, p.MinTTL = 255, uint8(256-int(w.TTLSecurity))
	case w.PeerAS != w.LocalAS: // packets of internal sessions keep the kernel's TTL
		p.TTL = w.TTL
	}
	return p
}
