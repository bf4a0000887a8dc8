package gobgppolicy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"

	"github.com/manxnet/manx/bgp"
)

// Our own routes are few and all attributes that filters use are known, so that they are decided here, each once for
// every group. The policy holds only the exceptions to "every own route is sent as it is".

// ownVerdict is the decision about some of our own routes on the sessions of a group.
type ownVerdict struct {
	accept   bool
	do       changes
	prefixes []netip.Prefix
}

// own decides about our own routes on the sessions of a group and returns the decisions by prefix.
func (b *policyBuilder) own(g *Group, guard func() *api.MatchSet) map[netip.Prefix]string {
	all := map[netip.Prefix]string{}
	verdicts := map[string]*ownVerdict{}
	for _, o := range b.d.Originated {
		if o.Withheld || o.Prefix.Addr().Is6() != g.IPv6 {
			continue
		}
		v := b.decideOwn(g, o)
		key := fmt.Sprint(v.accept, v.do)
		all[o.Prefix.Masked()] = key
		if v.accept == !o.FilterOnly && v.do.isNone() {
			continue // as for everybody
		}
		if verdicts[key] == nil {
			verdicts[key] = &v
		}
		verdicts[key].prefixes = append(verdicts[key].prefixes, o.Prefix)
	}
	for i, key := range slices.Sorted(maps.Keys(verdicts)) {
		v := verdicts[key]
		name := fmt.Sprintf("%s own %d", g.name, i)
		c := &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL, PrefixSet: b.prefixes(name, v.prefixes, true)}
		if v.accept {
			b.accept(name, guard(), c, v.do)
		} else {
			b.append(name, guard(), c, &api.Actions{RouteAction: reject})
		}
	}
	return all
}

func (c changes) isNone() bool {
	return len(c.communities)+len(c.large)+len(c.prepend) == 0 && c.localPref == 0
}

// decideOwn evaluates the rules for one of our own routes, and collects their changes.
func (b *policyBuilder) decideOwn(g *Group, o bgp.Origin) ownVerdict {
	v := bgp.Verdict{Accept: !o.FilterOnly, Route: o.Candidate()}
	if len(g.filters) > 0 {
		v = b.d.Export(g.Session, o.Candidate())
	}
	if !v.Accept {
		return ownVerdict{}
	}
	var do changes
	for _, c := range v.Route.Communities {
		if !slices.Contains(o.Communities, c) && (c != GracefulShutdown || b.d.Drain == bgp.DrainNone) {
			do.communities = append(do.communities, c)
		}
	}
	for _, c := range v.Route.LargeCommunities {
		if !slices.Contains(o.LargeCommunities, c) {
			do.large = append(do.large, c)
		}
	}
	yields := o.Yields && !g.external // its path in our table has another preference
	if (yields || v.Route.LocalPref != o.LocalPref) && b.d.Drain == bgp.DrainNone {
		do.localPref = max(v.Route.LocalPref, LowestLocalPref)
	}
	do.prepend = v.Route.ASPath // it was empty
	if g.external {
		do.prepend = BehindOwnAS(g.Session.LocalAS, do.prepend)
	}
	if g.drained && b.d.Drain == bgp.DrainNone { // else the route itself is the last choice
		lastChoice(&do)
		if slices.Contains(o.Communities, GracefulShutdown) {
			do.communities = slices.DeleteFunc(do.communities, func(c uint32) bool { return c == GracefulShutdown })
		}
	}
	return ownVerdict{accept: true, do: do}
}
