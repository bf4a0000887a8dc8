package server

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp/speaker"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// ListPeers implements manxv1.ManxServer.
func (s *Server) ListPeers(context.Context, *manxv1.ListPeersRequest) (*manxv1.ListPeersResponse, error) {
	return &manxv1.ListPeersResponse{Peers: s.now().peers()}, nil
}

// GetPeer implements manxv1.ManxServer.
func (s *Server) GetPeer(_ context.Context, r *manxv1.GetPeerRequest) (*manxv1.GetPeerResponse, error) {
	addr, err := netip.ParseAddr(r.GetAddress())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "address = %q: want an IP address", r.GetAddress())
	}
	if b := s.now().BGP; b != nil {
		if st, ok := b.Session(addr.Unmap()); ok {
			p := sessionRow(st)
			p.Prefixes.Advertised = &st.Counters.Advertised
			return &manxv1.GetPeerResponse{Peer: p}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no session with %s: neither the mesh nor a BGPPeer asks for one", addr)
}

func (s *Source) peers() []*manxv1.Peer {
	if s.BGP == nil {
		return nil
	}
	var peers []*manxv1.Peer
	for _, st := range s.BGP.Sessions() {
		peers = append(peers, sessionRow(st))
	}
	return peers
}

// sessionRow is a session without the number of advertised prefixes, which lists do not have.
func sessionRow(st speaker.SessionStatus) *manxv1.Peer {
	w := st.Session
	p := &manxv1.Peer{
		Address: text(w.Address), Port: uint32(w.Port), Type: string(w.Type), PeerAs: w.PeerAS, LocalAs: w.LocalAS,
		Phase: string(st.Phase), Reason: st.Reason, Warning: st.Warning, State: st.State, SinceUnixMs: unixMs(st.Since),
		Flaps: st.Flaps, LastError: st.LastError, LastErrorAtUnixMs: unixMs(st.LastErrorAt), RequestedBy: w.From,
		Prefixes: &manxv1.PeerPrefixes{Received: st.Counters.Received, Accepted: st.Counters.Accepted},
		Passive:  w.Passive, Source: text(w.Source), Password: w.PasswordFrom,
	}
	if st.LocalAddress.IsValid() {
		p.Source = st.LocalAddress.String()
	}
	if st.Phase == speaker.PhaseEstablished {
		p.EstablishedUnixMs = p.SinceUnixMs
		p.Negotiated = &manxv1.Negotiated{
			HoldSeconds: uint32(st.HoldTime.Seconds()), KeepaliveSeconds: uint32(st.Keepalive.Seconds()),
			RouterId: text(st.PeerRouterID), Family: family(w.Address), Capabilities: st.Capabilities,
			GracefulRestart: st.GracefulRestart, RestartSeconds: uint32(st.RestartTime.Seconds()),
		}
	}
	return p
}

// family is the address family of a, as people write it.
func family(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "IPv4"
	}
	return "IPv6"
}
