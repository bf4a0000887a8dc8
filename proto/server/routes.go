package server

import (
	"context"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/manxnet/manx/dataplane/route"
	manxv1 "github.com/manxnet/manx/proto/manx/v1"
)

// ListRoutes implements manxv1.ManxServer.
func (v *DataplaneView) ListRoutes(_ context.Context, r *manxv1.ListRoutesRequest) (*manxv1.ListRoutesResponse, error) {
	var within netip.Prefix
	if r.GetWithin() != "" {
		var err error
		if within, err = netip.ParsePrefix(r.GetWithin()); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "within = %q: want a prefix like 10.244.0.0/16",
				r.GetWithin())
		}
	}
	wanted := func(x route.Status) bool {
		return (!within.IsValid() || contains(within, x.Prefix)) &&
			(len(r.GetPhases()) == 0 || slices.Contains(r.GetPhases(), string(x.Phase))) &&
			(len(r.GetSources()) == 0 || slices.Contains(r.GetSources(), string(x.Source)))
	}
	answer := &manxv1.ListRoutesResponse{}
	for _, x := range v.routes() {
		if wanted(x) {
			answer.Routes = append(answer.Routes, routeRow(x))
		}
	}
	return answer, nil
}

func contains(outer, p netip.Prefix) bool {
	return p.Bits() >= outer.Bits() && outer.Contains(p.Addr())
}

func (v *DataplaneView) routes() []route.Status {
	agent := v.now().Agent
	if agent == nil {
		return nil
	}
	return agent.Routes()
}

// routeTo is the most specific route of this node to an address.
func (v *DataplaneView) routeTo(a netip.Addr) (route.Status, bool) {
	agent := v.now().Agent
	if agent == nil {
		return route.Status{}, false
	}
	return agent.RouteTo(a)
}

func routeRow(x route.Status) *manxv1.Route {
	r := &manxv1.Route{
		Prefix: text(x.Prefix), Desired: x.Desired, Actual: x.Actual, Phase: string(x.Phase), Reason: x.Reason,
		Source: string(x.Source), SinceUnixMs: unixMs(x.Since), Endpoint: x.Endpoint,
	}
	for _, n := range x.NextHops {
		r.NextHops = append(r.NextHops, n.String())
	}
	return r
}
