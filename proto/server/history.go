package server

import (
	"context"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/bgp/speaker"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// ListPeerTransitions implements manxv1.ManxServer.
func (v *BGPView) ListPeerTransitions(_ context.Context, r *manxv1.ListPeerTransitionsRequest) (
	*manxv1.ListPeerTransitionsResponse, error) {
	s, err := v.speaker()
	if err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddr(r.GetPeer()) // invalid: a name, or all
	object := "BGPPeer/" + r.GetPeer()
	answer := &manxv1.ListPeerTransitionsResponse{}
	for _, x := range s.History(addr.Unmap()) {
		if err == nil || r.GetPeer() == "" || slices.Contains(x.RequestedBy, object) {
			answer.Transitions = append(answer.Transitions, peerTransition(x))
		}
	}
	if len(answer.GetTransitions()) == 0 && r.GetPeer() != "" {
		_, err := findPeer(s, r.GetPeer())
		if status.Code(err) == codes.NotFound {
			return nil, err
		}
	}
	return answer, nil
}

func peerTransition(x speaker.Transition) *manxv1.PeerTransition {
	return &manxv1.PeerTransition{AtUnixMs: unixMs(x.At), Address: text(x.Address), RequestedBy: x.RequestedBy,
		From: string(x.From), To: string(x.To), LastedMs: x.Lasted.Milliseconds(), Reason: x.Reason, Flaps: x.Flaps,
		Routes: string(x.Routes), Bfd: x.BFD}
}
