package speaker

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/bgp/gobgppolicy"
)

// originPath is the local route for o. Its next hop is the local address of each session that it is sent on. In our own
// table, one that yields is the last choice: its peers get its preference from the policy.
func originPath(o bgp.Origin, now time.Time) (*apiutil.Path, error) {
	nlri, err := gobgp.NewIPAddrPrefix(o.Prefix.Masked())
	if err != nil {
		return nil, err
	}
	family, self := gobgp.RF_IPv4_UC, netip.IPv4Unspecified()
	if !o.Prefix.Addr().Is4() {
		family, self = gobgp.RF_IPv6_UC, netip.IPv6Unspecified()
	}
	preference := o.LocalPref
	if o.Yields {
		preference = 0
	}
	attrs := []gobgp.PathAttributeInterface{
		gobgp.NewPathAttributeOrigin(gobgp.BGP_ORIGIN_ATTR_TYPE_IGP),
		gobgp.NewPathAttributeLocalPref(preference),
	}
	if family == gobgp.RF_IPv4_UC {
		nh, err := gobgp.NewPathAttributeNextHop(self)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, nh)
	} else {
		nh, err := gobgp.NewPathAttributeMpReachNLRI(family, []gobgp.PathNLRI{{NLRI: nlri}}, self)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, nh)
	}
	if len(o.Communities) > 0 {
		attrs = append(attrs, gobgp.NewPathAttributeCommunities(slices.Clone(o.Communities)))
	}
	if len(o.LargeCommunities) > 0 {
		large := make([]*gobgp.LargeCommunity, 0, len(o.LargeCommunities))
		for _, c := range o.LargeCommunities {
			large = append(large, gobgp.NewLargeCommunity(c[0], c[1], c[2]))
		}
		attrs = append(attrs, gobgp.NewPathAttributeLargeCommunities(large))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs, Age: now.Unix()}, nil
}

// sameOnWire reports whether two origins of one prefix are announced alike.
func sameOnWire(a, b bgp.Origin) bool {
	return a.LocalPref == b.LocalPref && a.Yields == b.Yields && slices.Equal(a.Communities, b.Communities) &&
		slices.Equal(a.LargeCommunities, b.LargeCommunities)
}

// setOrigins announces and withdraws local routes so that they are as wanted; announcements go first.
func (r *speakerRun) setOrigins(origins []bgp.Origin, drain bgp.Drain) error {
	want := make(map[netip.Prefix]bgp.Origin, len(origins))
	for _, o := range origins {
		if o.Withheld || o.Yields && r.comesBehind(o.Prefix.Masked()) {
			continue
		}
		if drain != bgp.DrainNone {
			o = drained(o)
		}
		want[o.Prefix.Masked()] = o
	}
	var errs []error
	now := time.Now()
	for prefix, o := range want {
		if old, ok := r.origins[prefix]; ok && sameOnWire(old, o) {
			continue
		}
		if err := r.announce(o, now); err != nil {
			errs = append(errs, fmt.Errorf("bgp route %s: announce: %w", prefix, err))
			continue
		}
		r.origins[prefix] = o
	}
	for prefix, o := range r.origins {
		if _, ok := want[prefix]; ok {
			continue
		}
		if err := r.withdraw(o, now); err != nil {
			errs = append(errs, fmt.Errorf("bgp route %s: withdraw: %w", prefix, err))
			continue
		}
		delete(r.origins, prefix)
	}
	return errors.Join(errs...)
}

func (r *speakerRun) announce(o bgp.Origin, now time.Time) error {
	p, err := originPath(o, now)
	if err != nil {
		return err
	}
	_, err = r.srv.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{p}})
	return err
}

func (r *speakerRun) withdraw(o bgp.Origin, now time.Time) error {
	p, err := originPath(o, now)
	if err != nil {
		return err
	}
	return r.srv.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{p}})
}

// drained is an own route as a node announces it that is being drained (RFC 8326 section 4.1).
func drained(o bgp.Origin) bgp.Origin {
	o.LocalPref = 0
	if !slices.Contains(o.Communities, gobgppolicy.GracefulShutdown) {
		o.Communities = append(slices.Clone(o.Communities), gobgppolicy.GracefulShutdown)
		slices.Sort(o.Communities)
	}
	return o
}
