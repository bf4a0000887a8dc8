package gobgpapi

import (
	"context"
	"net/netip"
	"time"

	v3 "github.com/osrg/gobgp/v3/api"
	v4 "github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// ListPath sends the routes of the whole speaker (GLOBAL), or those received from (ADJ_IN) and sent to (ADJ_OUT) a
// peer, in the order of their prefixes. A table that is larger than a page may change between two pages.
func (s *Service) ListPath(r *v3.ListPathRequest, stream v3.GobgpApi_ListPathServer) error {
	b, err := s.server()
	if err != nil {
		return err
	}
	release, err := s.tables.listing(stream.Context(), r)
	if err != nil {
		return err
	}
	defer release()
	return s.tables.each(stream.Context(), b, listRequest(r), func(d destination) error {
		out := &v3.Destination{Prefix: d.prefix.String()}
		for _, p := range d.paths {
			out.Paths = append(out.Paths, newPath(p, r))
		}
		return stream.Send(&v3.ListPathResponse{Destination: out})
	})
}

func listRequest(r *v3.ListPathRequest) apiutil.ListPathRequest {
	same := &v4.ListPathRequest{}
	translate(r, same)
	out := apiutil.ListPathRequest{
		TableType: same.TableType, Name: same.Name, Family: familyOf(r.Family), SortType: same.SortType,
		EnableFiltered: same.EnableFiltered,
	}
	for _, p := range same.Prefixes {
		out.Prefixes = append(out.Prefixes, &apiutil.LookupPrefix{
			Prefix: p.Prefix, RD: p.Rd, LookupOption: apiutil.LookupOptionFromAPI(p.Type),
		})
	}
	return out
}

func familyOf(f *v3.Family) gobgp.Family {
	if f == nil {
		return gobgp.RF_IPv4_UC
	}
	return gobgp.NewFamily(uint16(f.Afi), uint8(f.Safi))
}

// newPath translates one path. r selects the form of NLRI and attributes.
func newPath(p *apiutil.Path, r *v3.ListPathRequest) *v3.Path {
	out := &v3.Path{
		Age: timestamppb.New(time.Unix(p.Age, 0)), Best: p.Best, IsWithdraw: p.Withdrawal, Validation: &v3.Validation{},
		NoImplicitWithdraw: p.NoImplicitWithdraw, Stale: p.Stale, Filtered: p.Filtered,
		SendMaxFiltered: p.SendMaxFiltered,
		Family:          &v3.Family{Afi: v3.Family_Afi(p.Family.Afi()), Safi: v3.Family_Safi(p.Family.Safi())},
		SourceAsn:       p.PeerASN, SourceId: addrOrNil(p.PeerID), NeighborIp: addrOrNil(p.PeerAddress),
		IsFromExternal: p.IsFromExternal, IsNexthopInvalid: p.IsNexthopInvalid, Identifier: p.RemoteID,
		LocalIdentifier: p.LocalID,
	}
	if !r.GetEnableOnlyBinary() {
		addTyped(out, p)
	}
	if r.GetEnableNlriBinary() || r.GetEnableOnlyBinary() {
		out.NlriBinary = binary(p.Nlri)
	}
	if r.GetEnableAttributeBinary() || r.GetEnableOnlyBinary() {
		for _, a := range p.Attrs {
			out.PattrsBinary = append(out.PattrsBinary, binary(a))
		}
	}
	return out
}

// addrOrNil spells a missing address as GoBGP v3 does, whose command shows it.
func addrOrNil(a netip.Addr) string {
	if a.IsValid() {
		return a.String()
	}
	return "<nil>"
}

// addTyped adds NLRI and attributes in the structured form.
func addTyped(out *v3.Path, p *apiutil.Path) {
	same := &v4.Path{}
	if p.Nlri != nil {
		same.Nlri, _ = apiutil.MarshalNLRI(p.Nlri)
	}
	same.Pattrs, _ = apiutil.MarshalPathAttributes(p.Attrs)
	typed := &v3.Path{}
	translate(same, typed)
	out.Nlri, out.Pattrs = typed.Nlri, typed.Pattrs
}

// binary is the form on the wire; nil if it has none.
func binary(m interface {
	Serialize(...*gobgp.MarshallingOption) ([]byte, error)
}) []byte {
	if m == nil {
		return nil
	}
	b, err := m.Serialize()
	if err != nil {
		return nil
	}
	return b
}

// GetTable counts the routes of a table.
func (s *Service) GetTable(ctx context.Context, r *v3.GetTableRequest) (*v3.GetTableResponse, error) {
	b, err := s.server()
	if err != nil {
		return nil, err
	}
	if r.Family == nil {
		return nil, status.Error(codes.InvalidArgument, "family is missing")
	}
	request := &v4.GetTableRequest{}
	translate(r, request)
	have, err := b.GetTable(ctx, request)
	if err != nil {
		return nil, err
	}
	out := &v3.GetTableResponse{}
	translate(have, out)
	return out, nil
}
