package gobgppolicy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/model"
)

// added returns the lines of a policy that exist because of filters.
func added(d bgp.Desired, interfaces map[netip.Addr]string) []string {
	without := d
	without.Filters = nil
	base := lines(Translate(without, interfaces))
	return slices.DeleteFunc(lines(Translate(d, interfaces)), func(l string) bool { return slices.Contains(base, l) })
}

// filtered is a node with two sessions for each direction and kind, which all have the filter "f" with these rules.
func filtered(rules ...bgp.Rule) bgp.Desired {
	for i := range rules {
		if rules[i].Name == "" {
			rules[i].Name = "rule"
		}
	}
	return bgp.Desired{
		Sessions: []bgp.Session{internal("10.0.0.1", "f"), external("10.0.0.2", "f"), internal("10.0.0.3")},
		Filters:  []bgp.Filter{{Name: "f", ImportV4: rules, ExportV4: rules}},
	}
}

func accepting(r bgp.Rule, operations ...bgp.Operation) bgp.Rule {
	r.Accept, r.Operations = true, operations
	return r
}

// TestRules translates one filter of both directions for an internal and an external session.
func TestRules(t *testing.T) {
	g := openGolden(t, "rules.txt")
	defer g.close()
	community := func(a, n uint32) bgp.Operation { return bgp.Operation{AddCommunity: std(a, n)} }
	prefix := func(m bgp.PrefixMatch) bgp.Rule { return bgp.Rule{Prefix: &m} }
	for _, c := range []struct {
		name string
		rule bgp.Rule
	}{
		{"reject everything", bgp.Rule{}},
		{"accept everything", accepting(bgp.Rule{})},
		{"the prefix itself", prefix(bgp.PrefixMatch{CIDR: pfx("10.1.0.0/16"), Min: 16, Max: 16})},
		{"lengths inside a prefix", prefix(bgp.PrefixMatch{CIDR: pfx("10.1.2.3/16"), Min: 20, Max: 24})},
		{"outside a prefix", prefix(bgp.PrefixMatch{CIDR: pfx("10.1.0.0/16"), Min: 16, Max: 32, Not: true})},
		{"a prefix of IPv6, for sessions of IPv4", prefix(inside("fd01::/48"))},
		{"outside a prefix of IPv6, for sessions of IPv4", prefix(bgp.PrefixMatch{CIDR: pfx("fd01::/48"), Min: 48,
			Max: 128, Not: true})},
		{"no length at all", prefix(bgp.PrefixMatch{CIDR: pfx("10.1.0.0/16"), Min: 25, Max: 24})},
		{"outside no length at all", prefix(bgp.PrefixMatch{CIDR: pfx("10.1.0.0/16"), Min: 25, Max: 24, Not: true})},
		{"a community", bgp.Rule{Community: std(64512, 7)}},
		{"a large community", bgp.Rule{Large: large(1, 2, 3)}},
		{"a path that starts with an AS", bgp.Rule{ASPathPrefix: []uint32{65009, 65010}}},
		{"a path that starts with our AS", bgp.Rule{ASPathPrefix: []uint32{64512}}},
		{"a priority", bgp.Rule{Priority: 1024}},
		{"the priority of routes without LOCAL_PREF", bgp.Rule{Priority: bgp.MaxPriority - bgp.DefaultLocalPref}},
		{"a priority that no route has", bgp.Rule{Priority: bgp.MaxPriority}},
		{"external peers", bgp.Rule{PeerType: model.FilterExternalPeers}},
		{"internal peers", bgp.Rule{PeerType: model.FilterInternalPeers}},
		{"all conditions", accepting(bgp.Rule{Prefix: &bgp.PrefixMatch{CIDR: pfx("10.1.0.0/16"), Min: 16, Max: 16},
			Community: std(1, 2), Large: large(1, 2, 3), ASPathPrefix: []uint32{65009},
			Priority: bgp.MaxPriority - bgp.DefaultLocalPref, RemotePeers: true})},

		{"add communities", accepting(bgp.Rule{}, community(1, 2), community(3, 4), community(1, 2),
			bgp.Operation{AddLarge: large(1, 2, 3)}, bgp.Operation{AddLarge: large(1, 2, 3)})},
		{"add communities that are there", accepting(bgp.Rule{Community: std(1, 2), Large: large(1, 2, 3)},
			community(1, 2), bgp.Operation{AddLarge: large(1, 2, 3)})},
		{"set a priority", accepting(bgp.Rule{}, bgp.Operation{SetPriority: 512}, bgp.Operation{SetPriority: 1024})},
		{"set the lowest priority", accepting(bgp.Rule{}, bgp.Operation{SetPriority: bgp.MaxPriority})},
		{"set a priority for a community", accepting(bgp.Rule{Community: std(1, 2), Prefix: new(inside("10.1.0.0/16"))},
			bgp.Operation{SetPriority: 1024}, community(65535, 0), community(3, 4))},
		{"prepend one AS", accepting(bgp.Rule{}, bgp.Operation{PrependASPath: []uint32{65009}})},
		{"prepend several ASes", accepting(bgp.Rule{}, bgp.Operation{PrependASPath: []uint32{65009, 65009, 65010}},
			bgp.Operation{PrependASPath: []uint32{65011}}, bgp.Operation{SetPriority: 1024}, community(1, 2))},
		{"prepend our AS", accepting(bgp.Rule{}, bgp.Operation{PrependASPath: []uint32{65009, 64512}})},
		{"prepend an AS too often for one action", accepting(bgp.Rule{},
			bgp.Operation{PrependASPath: slices.Repeat([]uint32{65009}, 256)})},
	} {
		g.compare(c.name, added(filtered(c.rule), nil))
	}
	draining := filtered(accepting(bgp.Rule{}, bgp.Operation{SetPriority: 1024}))
	draining.Drain = bgp.DrainDraining
	g.compare("accept everything on a node that drains", added(draining, nil))
	already := filtered(accepting(bgp.Rule{}, community(65535, 0), community(1, 2)))
	already.Drain = bgp.DrainDraining
	g.compare("add GRACEFUL_SHUTDOWN on a node that drains", added(already, nil))
}

// Rules about interfaces name the next hops that are reached by them. Without any, the rule is left out: an empty list
// would match every next hop.
func TestInterfaceRules(t *testing.T) {
	g := openGolden(t, "interfaces.txt")
	defer g.close()
	hops := map[netip.Addr]string{ip("10.9.0.2"): "eth1", ip("10.9.0.1"): "eth0", ip("10.9.0.3"): "lan",
		ip("10.9.0.4"): ""}
	for _, c := range []struct {
		name string
		rule bgp.Rule
	}{
		{"one interface", bgp.Rule{Interface: "lan"}},
		{"a pattern", bgp.Rule{Interface: "eth*"}},
		{"all interfaces, and no unknown one", bgp.Rule{Interface: "*"}},
		{"an interface without next hops", bgp.Rule{Interface: "eth9"}},
		{"a malformed pattern", bgp.Rule{Interface: "[", Accept: true}},
		{"an interface and the priority of routes without LOCAL_PREF", bgp.Rule{Interface: "lan",
			Priority: bgp.MaxPriority - bgp.DefaultLocalPref}},
	} {
		d := filtered(c.rule)
		g.compare(c.name, added(d, hops))
		if !Translate(d, hops).Watched {
			t.Errorf("%s: next hops are not watched", c.name)
		}
	}
	if Translate(filtered(bgp.Rule{}), hops).Watched {
		t.Error("next hops are watched without a rule about interfaces")
	}
}

// TestOwnRoutes has one filter with a rule for each of our routes. Their verdicts are in the policy only where they
// differ from the verdict for all peers.
func TestOwnRoutes(t *testing.T) {
	g := openGolden(t, "own.txt")
	defer g.close()
	match := func(s string) *bgp.PrefixMatch { return &bgp.PrefixMatch{CIDR: pfx(s), Min: 26, Max: 26} }
	rules := []bgp.Rule{
		{Name: "rejected", Prefix: match("10.1.0.0/26")},
		accepting(bgp.Rule{Name: "as it is", Prefix: match("10.1.1.0/26")}),
		accepting(bgp.Rule{Name: "changed", Prefix: match("10.1.2.0/26")},
			bgp.Operation{AddCommunity: std(1, 2)}, bgp.Operation{AddCommunity: std(9, 9)},
			bgp.Operation{AddCommunity: std(65535, 0)}, bgp.Operation{AddLarge: large(1, 2, 3)},
			bgp.Operation{AddLarge: large(9, 9, 9)}, bgp.Operation{SetPriority: 512}),
		accepting(bgp.Rule{Name: "changed", Prefix: match("10.1.3.0/26")},
			bgp.Operation{PrependASPath: []uint32{65009}}, bgp.Operation{SetPriority: bgp.MaxPriority}),
		{Name: "rejected", Prefix: match("10.1.4.0/26")},
		{Name: "rejected", Prefix: match("10.1.6.0/26")}, // which is withheld
	}
	origin := func(s string, change func(*bgp.Origin)) bgp.Origin {
		o := bgp.Origin{Prefix: pfx(s), LocalPref: 1000, Communities: []uint32{9<<16 | 9},
			LargeCommunities: [][3]uint32{{9, 9, 9}}}
		if change != nil {
			change(&o)
		}
		return o
	}
	filterOnly := func(o *bgp.Origin) { o.FilterOnly = true }
	d := filtered(rules...)
	d.Originated = []bgp.Origin{origin("10.1.0.0/26", nil), origin("10.1.1.0/26", filterOnly),
		origin("10.1.2.0/26", nil), origin("10.1.3.0/26", nil), origin("10.1.4.0/26", nil),
		origin("10.1.5.0/26", filterOnly),
		origin("10.1.6.0/26", func(o *bgp.Origin) { o.Withheld = true }), origin("10.1.7.0/26", nil),
		origin("fd01::/122", nil)}
	for _, drain := range []bgp.Drain{bgp.DrainNone, bgp.DrainDraining} {
		d.Drain = drain
		g.compare("own routes "+string(drain), slices.DeleteFunc(added(d, nil), aboutLearned))
	}
}

// aboutLearned selects the lines of the filter's rules.
func aboutLearned(line string) bool {
	for _, name := range []string{"export rejected", "export as it is", "export changed", "import ",
		"set prefix manx-prefix-"} {
		if len(line) >= len(name) && line[:len(name)] == name {
			return true
		}
	}
	return false
}
