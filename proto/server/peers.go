package server

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/bgp/speaker"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// ListPeers implements manxv1.ManxServer.
func (v *BGPView) ListPeers(_ context.Context, r *manxv1.ListPeersRequest) (*manxv1.ListPeersResponse, error) {
	if off := v.now().Off; off != "" {
		return nil, status.Error(codes.FailedPrecondition, off)
	}
	object := r.GetRequestedBy()
	answer := &manxv1.ListPeersResponse{}
	for _, p := range v.peers() {
		if object == "" || slices.Contains(p.GetRequestedBy(), object) {
			answer.Peers = append(answer.Peers, p)
		}
	}
	d := v.desired()
	for _, c := range d.Conflicts {
		if object == "" || concerns(c, object) {
			answer.Conflicts = append(answer.Conflicts, &manxv1.PeerConflict{Address: text(c.Address), Kept: c.Kept,
				Dropped: c.Dropped, Reason: c.Reason})
		}
	}
	for _, n := range d.Notices {
		switch object {
		case "":
			answer.Notices = append(answer.Notices, n.Object+": "+n.Reason)
		case n.Object:
			answer.Notices = append(answer.Notices, n.Reason)
		}
	}
	return answer, nil
}

// GetPeer implements manxv1.ManxServer.
func (v *BGPView) GetPeer(_ context.Context, r *manxv1.GetPeerRequest) (*manxv1.GetPeerResponse, error) {
	addr, err := netip.ParseAddr(r.GetAddress())
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "address = %q: want an IP address", r.GetAddress())
	}
	now := v.now()
	if now.Off != "" {
		return nil, status.Error(codes.FailedPrecondition, now.Off)
	}
	if now.Speaker != nil {
		if st, ok := now.Speaker.Session(addr.Unmap()); ok {
			return &manxv1.GetPeerResponse{Peer: peerDetails(st, v.desired())}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound,
		"there is no session with %s: neither the mesh nor a BGPPeer configures one", addr)
}

func (v *BGPView) peers() []*manxv1.Peer {
	speaker := v.now().Speaker
	if speaker == nil {
		return nil
	}
	d := v.desired()
	var peers []*manxv1.Peer
	for _, st := range speaker.Sessions() {
		p := sessionRow(st)
		p.Conflicts = conflictsOf(st, d)
		peers = append(peers, p)
	}
	return peers
}

// peerDetails is a session with the fields that lists leave out.
func peerDetails(st speaker.SessionStatus, d bgp.Desired) *manxv1.Peer {
	p, w, c := sessionRow(st), st.Session, st.Counters
	p.Prefixes.Advertised = &c.Advertised // just counted
	p.Messages = &manxv1.PeerMessages{In: c.MessagesIn, Out: c.MessagesOut, UpdatesIn: c.UpdatesIn,
		UpdatesOut: c.UpdatesOut}
	p.Wanted = &manxv1.Wanted{
		Source: text(w.Source), HoldSeconds: w.HoldSeconds, KeepaliveSeconds: w.KeepaliveSeconds,
		RestartSeconds: w.RestartSeconds,
		MultihopTtl:    uint32(w.MultihopTTL), TtlSecurity: uint32(w.TTLSecurity), NextHop: string(w.NextHop),
		ReflectorClient:    w.ReflectorClient,
		ReflectorClusterId: text(w.ReflectorClusterID), AllowOwnAs: w.AllowOwnAS, MaxPrefixes: w.MaxPrefixes,
		Workload: w.Workload, Filters: w.Filters,
	}
	p.Differences, p.Conflicts = differences(st), conflictsOf(st, d)
	for _, n := range d.Notices {
		if slices.Contains(w.From, n.Object) {
			p.Notices = append(p.Notices, n.Object+": "+n.Reason)
		}
	}
	return p
}

// conflictsOf lists the other requests for the address of a session.
func conflictsOf(st speaker.SessionStatus, d bgp.Desired) (list []string) {
	for _, c := range d.Conflicts {
		if c.Address == st.Session.Address {
			list = append(list, conflictText(c))
		}
	}
	return list
}

func concerns(c bgp.Conflict, object string) bool {
	return c.Kept == object || slices.Contains(c.Dropped, object)
}

// advertisedAge is how much older than the rest the number of advertised prefixes may be to be shown.
const advertisedAge = time.Minute

// sessionRow is a session as lists have it.
func sessionRow(st speaker.SessionStatus) *manxv1.Peer {
	w := st.Session
	p := &manxv1.Peer{
		Address: text(w.Address), Port: uint32(w.Port), Type: string(w.Type), PeerAs: w.PeerAS, LocalAs: w.LocalAS,
		Phase: string(st.Phase), Reason: st.Reason, Warning: st.Warning, State: st.State, SinceUnixMs: unixMs(st.Since),
		Flaps: st.Flaps, Restarts: st.Restarts, NextAttemptUnixMs: unixMs(st.NextAttempt), RequestedBy: w.From,
		LastError: st.LastError, LastErrorAtUnixMs: unixMs(st.LastErrorAt), LastErrorBy: string(st.LastErrorBy),
		Prefixes: &manxv1.PeerPrefixes{Received: st.Counters.Received, Accepted: st.Counters.Accepted},
		Passive:  w.Passive, Source: text(w.Source), Password: w.PasswordFrom,
		Drain: string(w.Drain),
	}
	if b := st.BFD; b != nil {
		p.Bfd = &manxv1.PeerBFD{State: b.State.String(), Reason: bfdReason(b), SinceUnixMs: unixMs(b.Since),
			Downs:      b.Downs,
			TransmitMs: uint32(b.Session.Transmit.Milliseconds()), ReceiveMs: uint32(b.Session.Receive.Milliseconds()),
			Multiplier: uint32(b.Session.Multiplier), Multihop: b.Session.Multihop,
			DetectionMs: uint32(b.Detection.Milliseconds())}
	}
	if c := st.Counters; !c.AdvertisedAt.IsZero() && c.At.Sub(c.AdvertisedAt) <= advertisedAge {
		p.Prefixes.Advertised = &c.Advertised
	}
	if st.LocalAddress.IsValid() {
		p.Source = st.LocalAddress.String()
	}
	if st.Phase == speaker.PhaseEstablished {
		p.EstablishedUnixMs = p.SinceUnixMs
		p.Negotiated = negotiated(st)
	}
	return p
}

func negotiated(st speaker.SessionStatus) *manxv1.Negotiated {
	return &manxv1.Negotiated{
		HoldSeconds: uint32(st.HoldTime.Seconds()), KeepaliveSeconds: uint32(st.Keepalive.Seconds()),
		RouterId: text(st.PeerRouterID), Family: family(st.Session.Address), Capabilities: st.Capabilities,
		GracefulRestart: st.GracefulRestart, RestartSeconds: uint32(st.RestartTime.Seconds()),
		Families: st.Families, AddPathReceive: st.AddPathReceive, AddPathSend: st.AddPathSend,
		PeerRestarted: st.PeerRestarted, PeerForwarding: st.PeerForward, RestartNotification: st.RestartNotification,
		LocalAddress: text(st.LocalAddress),
	}
}

const familyIPv4, familyIPv6 = "IPv4", "IPv6"

// family is the address family of a, as people write it.
func family(a netip.Addr) string {
	if a.Unmap().Is4() {
		return familyIPv4
	}
	return familyIPv6
}

// bfdReason is the cause of the state of BFD, with the dropped packets: a wrong setting shows there, too.
func bfdReason(b *bfd.Status) string {
	reason := cmp.Or(b.Error, b.Reason)
	if dropped := b.Drops.String(); dropped != "" {
		reason += "; packets dropped: " + dropped
	}
	return reason
}
