package speaker

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// TablePath is one path of the speaker's table with its attributes (RFC 4271 section 5).
type TablePath struct {
	Prefix  netip.Prefix
	Peer    netip.Addr // invalid: our own
	PathID  uint32     // RFC 7911, as received
	Best    bool
	Since   time.Time
	NextHop netip.Addr // unspecified: our own

	Origin           string   // "IGP", "EGP" or "Incomplete"
	ASPath           []uint32 // sets flattened
	LocalPref, MED   *uint32  // nil: absent
	Communities      []uint32
	LargeCommunities [][3]uint32
	Extended         []bgp.ExtendedCommunity
	OriginatorID     netip.Addr
	ClusterList      []netip.Addr
}

// Table returns all paths for the prefixes of one family, sorted by prefix, the best of each first. It reads all
// routes: it is for requests of people, not for polling.
func (s *Speaker) Table(ipv6 bool) ([]*TablePath, error) {
	run := s.current()
	if run == nil {
		return nil, errors.New("the BGP speaker is not running yet")
	}
	r := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: gobgp.RF_IPv4_UC}
	if ipv6 {
		r.Family = gobgp.RF_IPv6_UC
	}
	var list []*TablePath
	err := run.listPath(r, func(_ gobgp.NLRI, paths []*apiutil.Path) {
		for _, p := range paths {
			if t := tablePath(p); t != nil {
				list = append(list, t)
			}
		}
	})
	sortPaths(list)
	return list, err
}

// sortPaths sorts by prefix, and keeps the order of the paths of each.
func sortPaths(list []*TablePath) {
	slices.SortStableFunc(list, func(a, b *TablePath) int { return a.Prefix.Compare(b.Prefix) })
}

// tablePath converts a path of GoBGP, nil if it is not unicast.
func tablePath(p *apiutil.Path) *TablePath {
	nlri, ok := p.Nlri.(*gobgp.IPAddrPrefix)
	if !ok {
		return nil
	}
	t := &TablePath{Prefix: nlri.Prefix, Peer: p.PeerAddress, PathID: p.RemoteID, Best: p.Best,
		Since: time.Unix(p.Age, 0)}
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *gobgp.PathAttributeOrigin:
			t.Origin = originName(a.Value)
		case *gobgp.PathAttributeAsPath:
			for _, segment := range a.Value {
				t.ASPath = append(t.ASPath, segment.GetAS()...)
			}
		case *gobgp.PathAttributeNextHop:
			t.NextHop = a.Value
		case *gobgp.PathAttributeMpReachNLRI:
			t.NextHop = a.Nexthop
		case *gobgp.PathAttributeMultiExitDisc:
			t.MED = &a.Value
		case *gobgp.PathAttributeLocalPref:
			t.LocalPref = &a.Value
		case *gobgp.PathAttributeCommunities:
			t.Communities = a.Value
		case *gobgp.PathAttributeLargeCommunities:
			for _, c := range a.Values {
				t.LargeCommunities = append(t.LargeCommunities, [3]uint32{c.ASN, c.LocalData1, c.LocalData2})
			}
		case *gobgp.PathAttributeExtendedCommunities:
			for _, c := range a.Value {
				if octets, err := c.Serialize(); err == nil && len(octets) == len(bgp.ExtendedCommunity{}) {
					t.Extended = append(t.Extended, bgp.ExtendedCommunity(octets))
				}
			}
		case *gobgp.PathAttributeOriginatorId:
			t.OriginatorID = a.Value
		case *gobgp.PathAttributeClusterList:
			t.ClusterList = a.Value
		}
	}
	return t
}

func originName(v uint8) string {
	switch v {
	case gobgp.BGP_ORIGIN_ATTR_TYPE_IGP:
		return "IGP"
	case gobgp.BGP_ORIGIN_ATTR_TYPE_EGP:
		return "EGP"
	}
	return "Incomplete"
}
