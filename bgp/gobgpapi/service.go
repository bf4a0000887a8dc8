package gobgpapi

import (
	"context"
	"net/netip"
	"time"

	v3 "github.com/osrg/gobgp/v3/api"
	v4 "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/manxnet/manx/bgp/apiguard"
	"github.com/manxnet/manx/bgp/speaker"
)

// Service answers the calls of the stock gobgp command.
type Service struct {
	v3.UnimplementedGobgpApiServer
	speaker *speaker.Speaker
	log     *zap.Logger
	tables  *tables
	watches *apiguard.Slots
}

// New makes the service over a speaker, which may start and restart at any time.
func New(speaker *speaker.Speaker, log *zap.Logger) *Service {
	return &Service{speaker: speaker, log: log, tables: newTables(speaker),
		watches: apiguard.NewSlots(watchesEach, watchesOthers)}
}

// Register adds the service to a server. Calls that would change something are refused with PermissionDenied; the
// message names the alternative.
func (s *Service) Register(g *grpc.Server) { g.RegisterService(readOnly(v3.GobgpApi_ServiceDesc), s) }

// server is GoBGP itself.
func (s *Service) server() (*server.BgpServer, error) {
	if b := s.speaker.Server(); b != nil {
		return b, nil
	}
	return nil, status.Error(codes.Unavailable, "BGP is not running on this node yet: `manxctl node status` says why")
}

// list answers a listing call: it queries GoBGP, translates each element and sends it. Elements of one kind are
// equivalent in both versions.
func list[R4, E4 proto.Message, E3 any, P3 interface {
	*E3
	proto.Message
}](ctx context.Context, s *Service, r R4, call func(*server.BgpServer, context.Context, R4, func(E4)) error,
	send func(P3) error) error {
	b, err := s.server()
	if err != nil {
		return err
	}
	var sendErr error
	err = call(b, ctx, r, func(element E4) {
		if sendErr != nil || ctx.Err() != nil {
			return
		}
		out := P3(new(E3))
		translate(element, out)
		sendErr = send(out)
	})
	if err != nil {
		return err
	}
	return sendErr
}

// GetBgp returns AS, router ID and listener.
func (s *Service) GetBgp(ctx context.Context, _ *v3.GetBgpRequest) (*v3.GetBgpResponse, error) {
	b, err := s.server()
	if err != nil {
		return nil, err
	}
	have, err := b.GetBgp(ctx, &v4.GetBgpRequest{})
	if err != nil {
		return nil, err
	}
	r := &v3.GetBgpResponse{}
	translate(have, r)
	r.Global.ListenPort, r.Global.ListenAddresses = s.speaker.Listening()
	return r, nil
}

// ListPeer returns one peer or all, without passwords.
func (s *Service) ListPeer(r *v3.ListPeerRequest, stream v3.GobgpApi_ListPeerServer) error {
	request := &v4.ListPeerRequest{EnableAdvertised: r.EnableAdvertised} // spelt differently in v3
	return list(stream.Context(), s, translated(r, request), (*server.BgpServer).ListPeer, func(p *v3.Peer) error {
		return stream.Send(&v3.ListPeerResponse{Peer: withoutPassword(p)})
	})
}

// translated is a request of the other version that has the same meaning.
func translated[R proto.Message](from proto.Message, to R) R {
	translate(from, to)
	return to
}

// withoutPassword also adds the empty messages that the command expects.
func withoutPassword(p *v3.Peer) *v3.Peer {
	if p.Conf != nil {
		p.Conf.AuthPassword = ""
	}
	if p.State != nil {
		p.State.AuthPassword = ""
	}
	return p
}

// ResetPeer makes a session exchange its routes again, not too often. A hard reset is refused.
func (s *Service) ResetPeer(ctx context.Context, r *v3.ResetPeerRequest) (*emptypb.Empty, error) {
	if !r.Soft {
		return nil, refusal("ResetPeer", "a hard reset makes the peer drop all routes; root may do it with gobgp v4 "+
			"on the unix socket gobgp.sock in the run directory of manxd")
	}
	addr, err := netip.ParseAddr(r.Address)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "address = %q: must be the address of one peer", r.Address)
	}
	var kinds []speaker.ResetKind
	if r.Direction != v3.ResetPeerRequest_OUT {
		kinds = append(kinds, speaker.ResetSoftIn)
	}
	if r.Direction != v3.ResetPeerRequest_IN {
		kinds = append(kinds, speaker.ResetSoftOut)
	}
	if st, ok := s.speaker.Session(addr); !ok || st.State != "Established" {
		return nil, status.Errorf(codes.FailedPrecondition,
			"bgp session with %s is not established; there is nothing to reset", addr)
	}
	refused, err := s.speaker.Resets.Allow(addr.Unmap(), len(kinds), time.Now())
	if err != nil {
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	}
	// The line comes first: it must be there for a reset that takes long, too.
	s.log.Info("bgp session softly reset through the gobgp API", append(apiguard.CallerOf(ctx).Fields(),
		zap.Stringer("peer", addr), zap.Stringer("direction", r.Direction), zap.Uint64("refusedBefore", refused))...)
	for _, kind := range kinds {
		if err := s.speaker.ResetAllowed(ctx, addr, kind); err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	return &emptypb.Empty{}, nil
}

// ListPolicy returns the policies that GoBGP applies.
func (s *Service) ListPolicy(r *v3.ListPolicyRequest, stream v3.GobgpApi_ListPolicyServer) error {
	return list(stream.Context(), s, translated(r, &v4.ListPolicyRequest{}), (*server.BgpServer).ListPolicy,
		func(p *v3.Policy) error { return stream.Send(&v3.ListPolicyResponse{Policy: p}) })
}

// ListStatement returns the statements of the policies.
func (s *Service) ListStatement(r *v3.ListStatementRequest, stream v3.GobgpApi_ListStatementServer) error {
	return list(stream.Context(), s, translated(r, &v4.ListStatementRequest{}), (*server.BgpServer).ListStatement,
		func(p *v3.Statement) error { return stream.Send(&v3.ListStatementResponse{Statement: p}) })
}

// ListDefinedSet returns the sets that the policies use.
func (s *Service) ListDefinedSet(r *v3.ListDefinedSetRequest, stream v3.GobgpApi_ListDefinedSetServer) error {
	return list(stream.Context(), s, translated(r, &v4.ListDefinedSetRequest{}), (*server.BgpServer).ListDefinedSet,
		func(p *v3.DefinedSet) error { return stream.Send(&v3.ListDefinedSetResponse{DefinedSet: p}) })
}

// ListPolicyAssignment returns where the policies apply.
func (s *Service) ListPolicyAssignment(
	r *v3.ListPolicyAssignmentRequest, stream v3.GobgpApi_ListPolicyAssignmentServer,
) error {
	return list(stream.Context(), s, translated(r, &v4.ListPolicyAssignmentRequest{}),
		(*server.BgpServer).ListPolicyAssignment,
		func(p *v3.PolicyAssignment) error {
			return stream.Send(&v3.ListPolicyAssignmentResponse{Assignment: p})
		})
}

// ListVrf lists no VRF: Manx has none.
func (s *Service) ListVrf(*v3.ListVrfRequest, v3.GobgpApi_ListVrfServer) error { return nil }

// ListBmp lists no BMP station: Manx has none.
func (s *Service) ListBmp(*v3.ListBmpRequest, v3.GobgpApi_ListBmpServer) error { return nil }

// ListRpki lists no RPKI server: Manx uses none.
func (s *Service) ListRpki(*v3.ListRpkiRequest, v3.GobgpApi_ListRpkiServer) error { return nil }

// ListRpkiTable lists no route origin: Manx uses none.
func (s *Service) ListRpkiTable(*v3.ListRpkiTableRequest, v3.GobgpApi_ListRpkiTableServer) error {
	return nil
}

// ListPeerGroup lists no group: Manx has none.
func (s *Service) ListPeerGroup(*v3.ListPeerGroupRequest, v3.GobgpApi_ListPeerGroupServer) error {
	return nil
}

// ListDynamicNeighbor lists none: Manx takes sessions from known addresses only.
func (s *Service) ListDynamicNeighbor(*v3.ListDynamicNeighborRequest, v3.GobgpApi_ListDynamicNeighborServer) error {
	return nil
}
