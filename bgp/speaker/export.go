package speaker

import (
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"

	"github.com/manxnet/manx/bgp"
)

// Export to peers:
//
//	next hop self or keep             set, where the peer asks for it, and go on
//	learned, to an external peer      set MED to relayMED, and go on
//	own routes                        as filters have it; else accept, but for those with FilterOnly
//	filters of the session            the first rule that matches decides
//	inside NoExportPrefixes           reject, but for elevated routes inside our own blocks
//	inside ExportPrefixes             accept
//	anything else                     reject

// relayMED is the MULTI_EXIT_DISC of learned routes that are passed on to external peers (RFC 4271 section 5.1.4).
// All nodes of a mesh announce each other's blocks to their switch with the same AS path; without it the switch might
// send to one node what belongs to another, and, where that node reaches the other through the switch, for ever.
// Own routes carry none, which counts as 0, so the owner is preferred and the others remain as a way around.
const relayMED = 100

func (b *policyBuilder) exportStatements(groups []*group, peers []peerPolicy) []*api.Statement {
	if b.d.Drain == bgp.DrainWithdrawn {
		b.say("drained", nil, &api.Conditions{}, &api.Actions{RouteAction: reject})
		return b.take("export")
	}
	b.sessionStatements()
	for i, g := range groups {
		peers[i].own = b.own(g, func() *api.MatchSet { return b.neighbours(g.name, g.peers) })
	}
	local := func() *api.Conditions { return &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL} }
	for _, ipv6 := range []bool{false, true} {
		if only := sameFamily(filterOnly(b.d.Originated), ipv6); len(only) > 0 {
			c := local()
			c.PrefixSet = b.prefixes("manx-filter-only-"+familyName(ipv6), only, true)
			b.say("own, for filters only", nil, c, &api.Actions{RouteAction: reject})
		}
	}
	b.say("own", nil, local(), &api.Actions{RouteAction: accept})
	for i, g := range groups {
		b.since()
		for _, r := range g.rules(true) {
			b.rule(g, b.neighbours(g.name, g.peers), r, true)
		}
		peers[i].out = b.since()
	}
	b.relayStatements()
	return b.take("export")
}

// sessionStatements say what follows from settings of sessions, not from routes.
func (b *policyBuilder) sessionStatements() {
	var self, keep, external []netip.Addr
	for _, s := range b.d.Sessions {
		a := plainAddr(s.Address)
		switch s.NextHop {
		case bgp.NextHopSelf:
			self = append(self, a)
		case bgp.NextHopKeep:
			keep = append(keep, a)
		}
		if s.PeerAS != s.LocalAS {
			external = append(external, a)
		}
	}
	if len(self) > 0 {
		b.say("next hop self", b.neighbours("manx-next-hop-self", self), &api.Conditions{}, &api.Actions{Nexthop: &api.NexthopAction{Self: true}})
	}
	if len(keep) > 0 {
		b.say("next hop keep", b.neighbours("manx-next-hop-keep", keep), &api.Conditions{}, &api.Actions{Nexthop: &api.NexthopAction{Unchanged: true}})
	}
	if len(external) == 0 {
		return
	}
	for _, kind := range []api.Conditions_RouteType{api.Conditions_ROUTE_TYPE_INTERNAL, api.Conditions_ROUTE_TYPE_EXTERNAL} {
		med := &api.MedAction{Type: api.MedAction_TYPE_REPLACE, Value: relayMED}
		b.say("relayed", b.neighbours(setExternal, external), &api.Conditions{RouteType: kind}, &api.Actions{Med: med})
	}
}

const setExternal = "manx-external"

// relayStatements decide about learned routes that no filter decides about.
func (b *policyBuilder) relayStatements() {
	for _, ipv6 := range []bool{false, true} {
		family := familyName(ipv6)
		if list := sameFamily(b.d.NoExportPrefixes, ipv6); len(list) > 0 {
			b.say("not exported", nil, &api.Conditions{PrefixSet: b.prefixes("manx-noexport-"+family, list, false)}, &api.Actions{RouteAction: reject})
		}
		if list := sameFamily(b.d.ExportPrefixes, ipv6); len(list) > 0 {
			var do changes
			b.draining(&do)
			b.accept("exported "+family, nil, &api.Conditions{PrefixSet: b.prefixes("manx-export-"+family, list, false)}, do)
		}
	}
}

func (b *policyBuilder) importStatements(groups []*group, peers []peerPolicy) []*api.Statement {
	b.say("nobody else's marker", nil, &api.Conditions{LargeCommunitySet: b.markers()}, freshCommunities(changes{}))
	var external []netip.Addr
	for _, s := range b.d.Sessions {
		if s.PeerAS != s.LocalAS {
			external = append(external, plainAddr(s.Address))
		}
	}
	if len(external) > 0 {
		c := &api.Conditions{CommunitySet: b.communitySet(gracefulShutdown)}
		b.say("graceful shutdown", b.neighbours(setExternal, external), c, &api.Actions{LocalPref: &api.LocalPrefAction{Value: lowestLocalPref}})
	}
	for i, g := range groups {
		b.since()
		for _, r := range g.rules(false) {
			b.rule(g, b.neighbours(g.name, g.peers), r, false)
		}
		peers[i].in = b.since()
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

// outsideOf returns the prefixes that are in only one of two lists.
func outsideOf(a, b []netip.Prefix) (list []netip.Prefix) {
	for _, pair := range [][2][]netip.Prefix{{a, b}, {b, a}} {
		for _, p := range pair[0] {
			if !slices.Contains(pair[1], p) {
				list = append(list, p)
			}
		}
	}
	return list
}
