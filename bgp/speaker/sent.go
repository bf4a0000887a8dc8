package speaker

import (
	"fmt"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
)

// sentTo returns the paths that a peer has from us. recorded reports whether they are as they were sent; else they are
// those of GoBGP's Adj-RIB-Out, before the attributes of the session.
func (r *speakerRun) sentTo(s bgp.Session) (sent map[netip.Prefix][]*TablePath, recorded bool, err error) {
	sent = map[netip.Prefix][]*TablePath{}
	addr := s.Address.Unmap()
	messages, recorded := r.gate.Advertised(addr)
	if !recorded {
		return sent, false, r.paths(api.TableType_TABLE_TYPE_ADJ_OUT, s.Address, nil,
			func(t *TablePath) { sent[t.Prefix] = append(sent[t.Prefix], t) })
	}
	offered := r.gate.Offered(addr)
	options := &gobgp.MarshallingOption{Use2ByteAS: offered != nil && !offered.FourOctetAS}
	for _, m := range messages {
		parsed, err := gobgp.ParseBGPMessage(m.Message, options)
		if err != nil {
			return nil, false, fmt.Errorf("routes sent to peer %s: %w", s.Address, err)
		}
		attrs := parsed.Body.(*gobgp.BGPUpdate).PathAttributes
		for _, route := range m.Routes {
			nlri, err := gobgp.NewIPAddrPrefix(route.Prefix)
			if err != nil {
				return nil, false, err
			}
			t := tablePath(&apiutil.Path{Nlri: nlri, Attrs: attrs, Age: m.At.Unix()})
			t.PathID = route.ID
			sent[route.Prefix] = append(sent[route.Prefix], t)
		}
	}
	return sent, true, nil
}

// asSent is a verdict with the route as it was sent.
func asSent(v bgp.Verdict, t *TablePath) bgp.Verdict {
	v.Route.ASPath, v.Route.Communities, v.Route.LargeCommunities = t.ASPath, t.Communities, t.LargeCommunities
	v.Route.LocalPref = bgp.DefaultLocalPref
	if t.LocalPref != nil {
		v.Route.LocalPref = *t.LocalPref
	}
	return v
}
