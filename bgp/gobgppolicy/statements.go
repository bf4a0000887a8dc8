package gobgppolicy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/bgp"
)

// Export to peers:
//
//	next hop self or keep             set, if the peer requires it, and go on
//	learned, to an external peer      set MED to RelayMED, and go on
//	own routes                        as filters decide; else accept, except those with FilterOnly
//	NO_ADVERTISE, NO_EXPORT           reject, the latter to external peers
//	filters of the session            the first rule that matches decides
//	prefixAdvertisements              add communities, and go on
//	inside NoExportPrefixes           reject, except elevated routes inside our own blocks
//	inside ExportPrefixes             accept, for drained peers as the last choice
//	anything else                     reject

// RelayMED is the MULTI_EXIT_DISC of learned routes that are passed on to external peers (RFC 4271 section 5.1.4). All
// nodes of a mesh announce each other's blocks to their switch with the same AS path. Without it the switch might send
// traffic of one node to another, and, if that node reaches the owner through the switch, in a loop. Own routes carry
// none, which counts as 0, so the owner is preferred and the others remain as a way around.
const RelayMED = 100

func (b *policyBuilder) exportStatements(groups []*Group) []*api.Statement {
	if b.d.Drain == bgp.DrainWithdrawn {
		b.append("drained", nil, &api.Conditions{}, &api.Actions{RouteAction: reject})
		return b.take("export")
	}
	b.sessionStatements()
	for _, g := range groups {
		g.decided.Own = b.own(g, func() *api.MatchSet { return b.neighbours(g.name, g.Peers) })
	}
	local := func() *api.Conditions { return &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL} }
	for _, ipv6 := range []bool{false, true} {
		if only := sameFamily(filterOnly(b.d.Originated), ipv6); len(only) > 0 {
			c := local()
			c.PrefixSet = b.prefixes("manx-filter-only-"+familyName(ipv6), only, true)
			b.append("own, for filters only", nil, c, &api.Actions{RouteAction: reject})
		}
	}
	b.append("own", nil, local(), &api.Actions{RouteAction: accept})
	b.wellKnown() // from here on all routes are learned
	for _, g := range groups {
		b.since()
		for _, r := range g.Rules(true) {
			b.rule(g, b.neighbours(g.name, g.Peers), r, true)
		}
		g.decided.Out = b.since()
	}
	b.relayStatements()
	return b.take("export")
}

// sessionStatements adds the statements that follow from settings of sessions, not from routes.
func (b *policyBuilder) sessionStatements() {
	var self, keep []netip.Addr
	for i := range b.d.Sessions {
		s := &b.d.Sessions[i]
		a := PlainAddr(s.Address)
		switch s.NextHop {
		case bgp.NextHopSelf:
			self = append(self, a)
		case bgp.NextHopKeep:
			keep = append(keep, a)
		}
	}
	if len(self) > 0 {
		b.append("next hop self", b.neighbours("manx-next-hop-self", self), &api.Conditions{},
			&api.Actions{Nexthop: &api.NexthopAction{Self: true}})
	}
	if len(keep) > 0 {
		b.append("next hop keep", b.neighbours("manx-next-hop-keep", keep), &api.Conditions{},
			&api.Actions{Nexthop: &api.NexthopAction{Unchanged: true}})
	}
	external := b.external()
	if len(external) == 0 {
		return
	}
	for _, kind := range []api.Conditions_RouteType{api.Conditions_ROUTE_TYPE_INTERNAL,
		api.Conditions_ROUTE_TYPE_EXTERNAL} {
		med := &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: RelayMED}
		b.append("relayed", b.neighbours(setExternal, external), &api.Conditions{RouteType: kind},
			&api.Actions{Med: med})
	}
}

// wellKnown enforces the communities of learned routes that limit export (RFC 1997); GoBGP leaves that to its users.
func (b *policyBuilder) wellKnown() {
	refuse := &api.Actions{RouteAction: reject}
	b.append("NO_ADVERTISE", nil, &api.Conditions{CommunitySet: b.communitySet(NoAdvertise)}, refuse)
	if external := b.external(); len(external) > 0 {
		b.append("NO_EXPORT", b.neighbours(setExternal, external),
			&api.Conditions{CommunitySet: b.communitySet(NoExport)},
			refuse)
	}
}

// Well-known communities of RFC 1997.
const (
	NoExport    = 0xffffff01
	NoAdvertise = 0xffffff02
)

// external lists the peers in other ASes.
func (b *policyBuilder) external() (list []netip.Addr) {
	for i := range b.d.Sessions {
		if s := &b.d.Sessions[i]; s.PeerAS != s.LocalAS {
			list = append(list, PlainAddr(s.Address))
		}
	}
	return list
}

// drained lists the peers that are drained.
func (b *policyBuilder) drained() (list []netip.Addr) {
	for i := range b.d.Sessions {
		if s := &b.d.Sessions[i]; s.IsDrained() {
			list = append(list, PlainAddr(s.Address))
		}
	}
	return list
}

const (
	setExternal = "manx-external"
	setDrained  = "manx-drained"
)

// relayStatements decide about learned routes that no filter decides about, in the order of bgp.Desired.Export.
func (b *policyBuilder) relayStatements() {
	for i, tag := range b.d.Tags {
		c := &api.Conditions{PrefixSet: b.prefixes(fmt.Sprintf("manx-tag-%d", i), []netip.Prefix{tag.Prefix}, false)}
		b.add(fmt.Sprintf("communities of %s", tag.Prefix), nil, c,
			changes{communities: tag.Communities, large: tag.LargeCommunities})
	}
	var do, last changes
	lastChoice(&last)
	if b.d.Drain != bgp.DrainNone {
		do = last
	}
	drained := b.drained()
	hidden := slices.DeleteFunc(slices.Clone(b.d.NoExportPrefixes), func(p netip.Prefix) bool {
		return slices.Contains(b.d.OwnBlocks, p)
	})
	for six, family := range []string{"v4", "v6"} {
		inside := func(name string, list []netip.Prefix, exact bool, add func(*api.Conditions)) {
			if list = sameFamily(list, six == 1); len(list) > 0 {
				add(&api.Conditions{PrefixSet: b.prefixes("manx-"+name+"-"+family, list, exact)})
			}
		}
		rejected := func(c *api.Conditions) {
			b.append("not exported "+family, nil, c, &api.Actions{RouteAction: reject})
		}
		accepted := func(c *api.Conditions) {
			if len(drained) > 0 && b.d.Drain == bgp.DrainNone {
				b.accept("exported to drained peers "+family, b.neighbours(setDrained, drained), c, last)
			}
			b.accept("exported "+family, nil, c, do)
		}
		inside("noexport", hidden, false, rejected)
		inside("own-block", b.d.OwnBlocks, true, rejected)
		inside("own-blocks", b.d.OwnBlocks, false, func(c *api.Conditions) {
			for _, priority := range b.d.Elevated[six] {
				elevated := proto.Clone(c).(*api.Conditions)
				elevated.LocalPrefEq = &api.LocalPrefEq{Value: localPrefOf(priority)}
				accepted(elevated)
			}
			rejected(c)
		})
		inside("export", slices.Concat(b.d.ExportPrefixes, b.d.Services), false, accepted)
	}
}

// rangesOf describes the decisions of relayStatements by prefix.
func rangesOf(d bgp.Desired) map[netip.Prefix]string {
	ranges := map[netip.Prefix]string{}
	note := func(list []netip.Prefix, what string) {
		for _, p := range list {
			ranges[p.Masked()] += what
		}
	}
	note(d.ExportPrefixes, "export ")
	note(d.Services, "service ")
	note(d.NoExportPrefixes, "hidden ")
	note(d.OwnBlocks, fmt.Sprint("own but ", d.Elevated))
	for _, t := range d.Tags {
		note([]netip.Prefix{t.Prefix}, fmt.Sprint(t.Communities, t.LargeCommunities))
	}
	return ranges
}

func (b *policyBuilder) importStatements(groups []*Group) []*api.Statement {
	b.refuse()
	b.append("nobody else's marker", nil, &api.Conditions{LargeCommunitySet: b.markers()}, freshCommunities(changes{}))
	b.refuseOutsiders()
	if external := b.external(); len(external) > 0 {
		c := &api.Conditions{CommunitySet: b.communitySet(GracefulShutdown)}
		b.append("graceful shutdown", b.neighbours(setExternal, external), c,
			&api.Actions{LocalPref: &api.LocalPrefAction{Value: LowestLocalPref}})
	}
	for _, g := range groups {
		b.since()
		for _, r := range g.Rules(false) {
			b.rule(g, b.neighbours(g.name, g.Peers), r, false)
		}
		if g.drained { // after the rules, which may have LOCAL_PREF as a condition
			b.append("drained "+g.name, b.neighbours(g.name, g.Peers), &api.Conditions{},
				&api.Actions{LocalPref: &api.LocalPrefAction{Value: LowestLocalPref}})
		}
		g.decided.In = b.since()
	}
	return b.take("import")
}

func filterOnly(origins []bgp.Origin) (list []netip.Prefix) {
	for _, o := range origins {
		if o.FilterOnly && !o.Withheld {
			list = append(list, o.Prefix.Masked())
		}
	}
	return list
}

func familyName(ipv6 bool) string {
	if ipv6 {
		return "v6"
	}
	return "v4"
}

// Unequal returns the prefixes about which two maps differ.
func Unequal(a, b map[netip.Prefix]string) (list []netip.Prefix) {
	for p, was := range a {
		if is, ok := b[p]; !ok || is != was {
			list = append(list, p)
		}
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			list = append(list, p)
		}
	}
	return list
}
