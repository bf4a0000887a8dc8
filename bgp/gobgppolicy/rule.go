package gobgppolicy

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"

	"github.com/manxnet/manx/bgp"
)

// GracefulShutdown is the community of routes that are about to go away (RFC 8326).
const GracefulShutdown = 65535 << 16

// LowestLocalPref is the lowest LOCAL_PREF that a policy of GoBGP can set: it takes 0 for "leave as it is".
const LowestLocalPref = 1

// marker is on a route while several statements work on it, and never longer. AS 4294967295 is reserved (RFC 7300).
const (
	marker    = "4294967295:4294967295:1"
	markerSet = "manx-marker"
)

var (
	accept = api.RouteAction_ROUTE_ACTION_ACCEPT
	reject = api.RouteAction_ROUTE_ACTION_REJECT
)

// changes is the sum of the operations of a rule, whatever their order.
type changes struct {
	communities []uint32
	large       [][3]uint32
	prepend     []uint32 // the path starts with these afterwards
	localPref   uint32   // 0: unchanged
}

func changesOf(operations []bgp.Operation) changes {
	var c changes
	for _, op := range operations {
		switch {
		case op.AddCommunity != nil:
			if !slices.Contains(c.communities, *op.AddCommunity) {
				c.communities = append(c.communities, *op.AddCommunity)
			}
		case op.AddLarge != nil:
			if !slices.Contains(c.large, *op.AddLarge) {
				c.large = append(c.large, *op.AddLarge)
			}
		case len(op.PrependASPath) > 0:
			c.prepend = slices.Concat(op.PrependASPath, c.prepend)
		case op.SetPriority != 0:
			c.localPref = localPrefOf(op.SetPriority)
		}
	}
	return c
}

func localPrefOf(priority uint32) uint32 {
	if priority >= bgp.MaxPriority {
		return LowestLocalPref
	}
	return bgp.MaxPriority - priority
}

// rule translates one rule of a filter, or nothing if it cannot match on this session.
func (b *policyBuilder) rule(g *Group, guard *api.MatchSet, r bgp.Rule, export bool) {
	c := &api.Conditions{}
	if !b.match(c, g, r, export) {
		return
	}
	if !r.Accept {
		b.append(r.Name, guard, c, &api.Actions{RouteAction: reject})
		return
	}
	do := changesOf(r.Operations)
	switch {
	case export && (g.drained || b.d.Drain != bgp.DrainNone):
		lastChoice(&do)
	case !export && g.drained:
		do.localPref = LowestLocalPref
	}
	if r.Community != nil { // it is there already
		do.communities = slices.DeleteFunc(do.communities, func(v uint32) bool { return v == *r.Community })
	}
	if r.Large != nil {
		do.large = slices.DeleteFunc(do.large, func(v [3]uint32) bool { return v == *r.Large })
	}
	if export && g.external {
		do.prepend = BehindOwnAS(g.Session.LocalAS, do.prepend)
	}
	if !export && g.external && do.localPref != 0 && !g.drained {
		b.shutDownFirst(g, guard, r, do)
	}
	b.accept(r.Name, guard, c, do)
}

// match adds the conditions of a rule about learned routes and reports whether they can hold at all.
func (b *policyBuilder) match(c *api.Conditions, g *Group, r bgp.Rule, export bool) bool {
	if r.PeerType == "eBGP" && !g.external || r.PeerType == "iBGP" && g.external {
		return false
	}
	if r.Prefix != nil && !b.matchPrefix(c, g, *r.Prefix) {
		return false
	}
	if r.Community != nil {
		c.CommunitySet = b.communitySet(*r.Community)
	}
	if r.Large != nil {
		text := largeText(*r.Large)
		c.LargeCommunitySet = b.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY,
			Name: "manx-large-" + text, List: []string{text}})
	}
	if len(r.ASPathPrefix) > 0 {
		text := pathPattern(g, r.ASPathPrefix, export)
		c.AsPathSet = b.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_AS_PATH, Name: "manx-as-path-" +
			text, List: []string{text}})
	}
	if r.Priority != 0 {
		if r.Priority >= bgp.MaxPriority {
			return false
		}
		pref := bgp.MaxPriority - r.Priority
		if !export && g.external {
			// LOCAL_PREF of another AS is dropped on the way in, so that it is known.
			return b.matchInterface(c, r) && pref == bgp.DefaultLocalPref
		}
		c.LocalPrefEq = &api.LocalPrefEq{Value: pref}
	}
	return b.matchInterface(c, r)
}

func (b *policyBuilder) matchPrefix(c *api.Conditions, g *Group, m bgp.PrefixMatch) bool {
	if m.CIDR.Addr().Is6() != g.IPv6 || m.Min > m.Max { // no route is like that
		return m.Not
	}
	name := fmt.Sprintf("manx-prefix-%s-%d-%d", m.CIDR.Masked(), m.Min, m.Max)
	c.PrefixSet = b.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: name,
		Prefixes: []*api.Prefix{{
			IpPrefix: m.CIDR.Masked().String(), MaskLengthMin: uint32(m.Min), MaskLengthMax: uint32(m.Max),
		}}})
	if m.Not {
		c.PrefixSet.Type = api.MatchSet_TYPE_INVERT
	}
	return true
}

// matchInterface names the next hops that are reached by the interface. An empty list would match every next hop.
func (b *policyBuilder) matchInterface(c *api.Conditions, r bgp.Rule) bool {
	if r.Interface == "" {
		return true
	}
	b.watched = true
	for hop, name := range b.interfaces {
		if ok, err := path.Match(r.Interface, name); ok && err == nil && name != "" {
			c.NextHopInList = append(c.NextHopInList, hop.String())
		}
	}
	slices.Sort(c.NextHopInList)
	return len(c.NextHopInList) > 0
}

func (b *policyBuilder) communitySet(values ...uint32) *api.MatchSet {
	var list []string
	for _, v := range values {
		list = append(list, CommunityText(v))
	}
	return b.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_COMMUNITY, Name: "manx-community-" +
		strings.Join(list, "-"), List: list})
}

// pathPattern matches paths that start with the given ASes. Towards another AS GoBGP has already prepended our own AS
// when it evaluates the policy, but not when it checks whether the route before a change had been sent.
func pathPattern(g *Group, start []uint32, export bool) string {
	text := strings.Trim(fmt.Sprint(start), "[]") + "_"
	switch own := g.Session.LocalAS; {
	case !export || !g.external:
		return "^" + text
	case start[0] == own:
		return fmt.Sprintf("^%d %s", own, text)
	default:
		return fmt.Sprintf("^(%d )?%s", own, text)
	}
}

// BehindOwnAS returns the ASes to prepend to a path that already starts with our own AS, so that our AS stays the first
// one, as other ASes demand. The path may get one more of our own AS than if the policy was evaluated before.
func BehindOwnAS(own uint32, list []uint32) []uint32 {
	if len(list) == 0 {
		return nil
	}
	if list[len(list)-1] == own {
		list = list[:len(list)-1]
	}
	return slices.Concat([]uint32{own}, list)
}

// shutDownFirst keeps a rule from raising routes that their sender takes out of service (RFC 8326 section 4.2).
func (b *policyBuilder) shutDownFirst(g *Group, guard *api.MatchSet, r bgp.Rule, do changes) {
	special := &api.Conditions{}
	values := []uint32{GracefulShutdown}
	if r.Community != nil {
		values = append(values, *r.Community)
	}
	b.match(special, g, r, false)
	special.CommunitySet = b.communitySet(values...)
	special.CommunitySet.Type = api.MatchSet_TYPE_ALL
	do.communities = slices.DeleteFunc(slices.Clone(do.communities),
		func(v uint32) bool { return v == GracefulShutdown })
	do.localPref = LowestLocalPref
	b.accept(r.Name+", graceful shutdown", guard, special, do)
}

// lastChoice adds the attributes of every route that a draining node sends, or that a drained peer is sent (RFC 8326).
func lastChoice(do *changes) {
	if !slices.Contains(do.communities, GracefulShutdown) {
		do.communities = append(slices.Clone(do.communities), GracefulShutdown)
	}
	do.localPref = LowestLocalPref
}

// accept adds statements that change and accept routes with the conditions. A statement of GoBGP can prepend only one
// AS, and cannot remove and add communities at once. The steps of longer changes recognise the route by a marker,
// because the attributes changed by earlier steps might be a condition.
func (b *policyBuilder) accept(name string, guard *api.MatchSet, c *api.Conditions, do changes) {
	runs := prependRuns(do.prepend)
	chain := len(runs) > 1
	first := b.adding(name, guard, c, do, chain)
	first.RouteAction = accept
	if do.localPref != 0 {
		first.LocalPref = &api.LocalPrefAction{Value: do.localPref}
	}
	if len(runs) > 0 {
		first.AsPrepend, runs = runs[0], runs[1:]
	}
	if chain {
		first.RouteAction = api.RouteAction_ROUTE_ACTION_UNSPECIFIED
	}
	b.append(name, guard, c, first)
	marked := &api.Conditions{}
	for i, run := range runs {
		marked.LargeCommunitySet = b.markers()
		a := &api.Actions{AsPrepend: run}
		if i == len(runs)-1 {
			a.LargeCommunity, a.RouteAction = largeAction(api.CommunityAction_TYPE_REMOVE, nil, true), accept
		}
		b.append(fmt.Sprintf("%s, AS path %d", name, i+2), guard, marked, a)
	}
}

// add adds communities to routes with the conditions and decides nothing.
func (b *policyBuilder) add(name string, guard *api.MatchSet, c *api.Conditions, do changes) {
	if len(do.communities)+len(do.large) > 0 {
		b.append(name, guard, c, b.adding(name, guard, c, do, false))
	}
}

// adding adds the statements that must precede the addition of communities, and returns the actions that add them.
func (b *policyBuilder) adding(
	name string, guard *api.MatchSet, c *api.Conditions, do changes, mark bool,
) *api.Actions {
	if len(do.communities)+len(do.large) == 0 && !mark {
		return &api.Actions{}
	}
	b.append(name+", as if new", guard, c, freshCommunities(do))
	return &api.Actions{
		Community:      communityAction(api.CommunityAction_TYPE_ADD, do.communities),
		LargeCommunity: largeAction(api.CommunityAction_TYPE_ADD, do.large, mark),
	}
}

func (b *policyBuilder) markers() *api.MatchSet {
	return b.set(&api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_LARGE_COMMUNITY, Name: markerSet,
		List: []string{marker}})
}

// freshCommunities removes the communities that are about to be added, so that none is there twice. As a side effect
// each list of communities becomes a new one of exactly its length: GoBGP appends large communities to a list that
// routes may share.
func freshCommunities(do changes) *api.Actions {
	return &api.Actions{
		Community:      communityAction(api.CommunityAction_TYPE_REMOVE, do.communities),
		LargeCommunity: largeAction(api.CommunityAction_TYPE_REMOVE, do.large, true),
	}
}

func communityAction(kind api.CommunityAction_Type, values []uint32) *api.CommunityAction {
	if len(values) == 0 {
		return nil
	}
	a := &api.CommunityAction{Type: kind}
	for _, v := range values {
		a.Communities = append(a.Communities, CommunityText(v))
	}
	return a
}

func largeAction(kind api.CommunityAction_Type, values [][3]uint32, withMarker bool) *api.CommunityAction {
	a := &api.CommunityAction{Type: kind}
	for _, v := range values {
		a.Communities = append(a.Communities, largeText(v))
	}
	if withMarker {
		a.Communities = append(a.Communities, marker)
	}
	if len(a.Communities) == 0 {
		return nil
	}
	return a
}

// prependRuns groups equal neighbours of a list into actions, in the order of doing them: the last AS goes first.
func prependRuns(list []uint32) (runs []*api.AsPrependAction) {
	for _, as := range slices.Backward(list) {
		if n := len(runs); n > 0 && runs[n-1].Asn == as && runs[n-1].Repeat < 255 {
			runs[n-1].Repeat++
			continue
		}
		runs = append(runs, &api.AsPrependAction{Asn: as, Repeat: 1})
	}
	return runs
}

// CommunityText writes a community of RFC 1997.
func CommunityText(v uint32) string { return fmt.Sprintf("%d:%d", v>>16, v&0xffff) }

func largeText(v [3]uint32) string { return fmt.Sprintf("%d:%d:%d", v[0], v[1], v[2]) }

// sameFamily keeps the prefixes of one family.
func sameFamily(list []netip.Prefix, ipv6 bool) (kept []netip.Prefix) {
	for _, p := range list {
		if p.Addr().Is6() == ipv6 {
			kept = append(kept, p)
		}
	}
	return kept
}
