package speaker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// JudgedPath is a path together with what becomes of it on one session.
type JudgedPath struct {
	TablePath             // as before the verdict
	Verdict   bgp.Verdict // accepted or not, by which rule, and the route as it is afterwards
}

// ReceivedFrom returns all paths that a peer has announced, also those that its import filters reject, sorted by prefix.
// It looks at all routes of the peer.
func (s *Speaker) ReceivedFrom(ctx context.Context, peer netip.Addr) ([]JudgedPath, error) {
	return s.judged(ctx, peer, api.TableType_TABLE_TYPE_ADJ_IN)
}

// AdvertisedTo returns the best path of every prefix, our own included, that could be sent to a peer, sorted by prefix;
// the verdict tells which are. It looks at all routes.
func (s *Speaker) AdvertisedTo(ctx context.Context, peer netip.Addr) ([]JudgedPath, error) {
	return s.judged(ctx, peer, api.TableType_TABLE_TYPE_ADJ_OUT)
}

func (s *Speaker) judged(_ context.Context, peer netip.Addr, table api.TableType) ([]JudgedPath, error) {
	run := s.current()
	if run == nil {
		return nil, errors.New("the BGP speaker is not running yet")
	}
	peer = peer.Unmap()
	r := apiutil.ListPathRequest{TableType: table, Name: peer.String(), Family: gobgp.RF_IPv4_UC, EnableFiltered: true}
	if !peer.Is4() {
		r.Family = gobgp.RF_IPv6_UC
	}
	var list []JudgedPath
	err := run.srv.ListPath(r, func(_ gobgp.NLRI, paths []*apiutil.Path) {
		for _, p := range paths {
			if t, ok := tablePath(p); ok {
				list = append(list, JudgedPath{TablePath: t, Verdict: bgp.Verdict{Accept: !p.Filtered}})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("routes of peer %s: %w", peer, err)
	}
	slices.SortStableFunc(list, func(a, b JudgedPath) int { return a.Prefix.Compare(b.Prefix) })
	return list, nil
}
