package gobgppolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"

	"github.com/manxnet/manx/bgp"
)

// Refusals stand in the import policy, so that a refused route never gets into the table of routes: it cannot be the
// best path, and no other peer is sent it.

// refuse adds the refusals that hold for every peer: one statement for each family, whatever the number of refusals. It
// names all possible peers because GoBGP applies the import policy to our own routes, too.
func (b *policyBuilder) refuse() {
	for _, ipv6 := range []bool{false, true} {
		peers := slices.ContainsFunc(b.d.Sessions,
			func(s bgp.Session) bool { return PlainAddr(s.Address).Is6() == ipv6 })
		if !peers {
			continue
		}
		if set := b.refusedSet("manx-refused-"+familyName(ipv6), ipv6, false); set != nil {
			b.append("refused "+familyName(ipv6), b.anyPeer(ipv6), &api.Conditions{PrefixSet: set},
				&api.Actions{RouteAction: reject})
		}
	}
}

// refuseOutsiders adds the refusals for peers outside the cluster. A statement has one set of prefixes only, so that a
// marker is put on routes inside the ranges, taken off the exceptions, and matched in the end.
func (b *policyBuilder) refuseOutsiders() {
	for _, ipv6 := range []bool{false, true} {
		peers := outsiders(b.d.Sessions, ipv6)
		set := b.refusedSet("manx-refused-outside-"+familyName(ipv6), ipv6, true)
		if set == nil || len(peers) == 0 {
			continue
		}
		name := "refused from outside " + familyName(ipv6)
		guard := b.neighbours("manx-outside-"+familyName(ipv6), peers)
		c := &api.Conditions{PrefixSet: set}
		b.append(name, guard, c, b.adding(name, guard, c, changes{}, true))
		if except := sameFamily(exceptions(b.d.Refusals), ipv6); len(except) > 0 {
			c := &api.Conditions{PrefixSet: b.prefixes("manx-blocks-"+familyName(ipv6), except, true)}
			b.append(name+", but for blocks", guard, c,
				&api.Actions{LargeCommunity: largeAction(api.CommunityAction_TYPE_REMOVE, nil, true)})
		}
		b.append(name+", the rest", guard, &api.Conditions{LargeCommunitySet: b.markers()},
			&api.Actions{RouteAction: reject})
	}
}

// refusedSet is the set of the prefixes that the refusals of a family match; nil if there are none.
func (b *policyBuilder) refusedSet(name string, ipv6, ofOutsiders bool) *api.MatchSet {
	s := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: name}
	for _, r := range b.d.Refusals {
		m := r.Match
		if r.Outsiders != ofOutsiders || m.CIDR.Addr().Is6() != ipv6 {
			continue
		}
		if m.Min <= m.Max {
			s.Prefixes = append(s.Prefixes, &api.Prefix{IpPrefix: m.CIDR.String(), MaskLengthMin: uint32(m.Min),
				MaskLengthMax: uint32(m.Max)})
		}
		for _, p := range r.Also {
			s.Prefixes = append(s.Prefixes, &api.Prefix{IpPrefix: p.String(), MaskLengthMin: uint32(p.Bits()),
				MaskLengthMax: uint32(p.Bits())})
		}
	}
	if len(s.Prefixes) == 0 {
		return nil
	}
	return b.set(s)
}

// anyPeer is the set of all addresses of a family.
func (b *policyBuilder) anyPeer(ipv6 bool) *api.MatchSet {
	halves := []string{"0.0.0.0/1", "128.0.0.0/1"}
	if ipv6 {
		halves = []string{"::/1", "8000::/1"}
	}
	return b.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR,
		Name: "manx-any-peer-" + familyName(ipv6), List: halves})
}

func outsiders(sessions []bgp.Session, ipv6 bool) (list []netip.Addr) {
	for i := range sessions {
		s := &sessions[i]
		if a := PlainAddr(s.Address); s.Outsider && a.Is6() == ipv6 {
			list = append(list, a)
		}
	}
	return list
}

// exceptions lists the prefixes that outsiders may announce inside ranges that are refused; sorted.
func exceptions(refusals bgp.Refusals) (list []netip.Prefix) {
	for _, r := range refusals {
		list = append(list, r.Except...)
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list)
}

// refusedText describes the refusals of a session, apart from single prefixes: Also and Except. A changed text requires
// all routes of the peer to be decided again.
func refusedText(list bgp.Refusals) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprint(&b, r.Match, ";")
	}
	return b.String()
}

// SessionRefusals are the refusals that hold on a session, and a text about them: where it differs, all routes of the
// peer have to be decided again.
type SessionRefusals struct {
	List bgp.Refusals
	Text string
}

// RefusalsBySession picks those that hold on a session; sessions of one kind share them.
func RefusalsBySession(list bgp.Refusals) func(bgp.Session) SessionRefusals {
	type kind struct{ ipv6, outsider bool }
	known := map[kind]SessionRefusals{}
	return func(s bgp.Session) SessionRefusals {
		k := kind{PlainAddr(s.Address).Is6(), s.Outsider}
		r, ok := known[k]
		if !ok {
			r.List = list.For(s)
			r.Text = refusedText(r.List)
			known[k] = r
		}
		return r
	}
}
