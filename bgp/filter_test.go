package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// filtered computes node a with one BGPPeer, whose filters are f (and g), and returns its session.
func filtered(t testing.TB, peer string, lines ...string) (Desired, Session) {
	t.Helper()
	d := compute(t, "a", append(lines, `node a {"bgp":{"ipv4Address":"10.192.0.2/24","ipv6Address":"fd00:192::2/64"}}`,
		`peer p {"peerIP":`+peer+`,"filters":["f","g"]}`, `config default {"nodeToNodeMeshEnabled":false}`,
		`filter g {}`)...)
	if len(d.Sessions) != 1 {
		t.Fatalf("sessions %v, notices %v", showAll(d.Sessions), showNotices(d))
	}
	return d, d.Sessions[0]
}

const (
	external   = `"10.192.0.100","asNumber":65001`
	internal   = `"10.192.0.100","asNumber":64512`
	externalV6 = `"fd00:192::64","asNumber":65001`
)

// learned makes a candidate of an external peer.
func learned(prefix string) Candidate {
	return Candidate{Prefix: netip.MustParsePrefix(prefix), Source: SourceExternal, LocalPref: 100}
}

func ownRoute(prefix, device string) Candidate {
	return Candidate{Prefix: netip.MustParsePrefix(prefix), Source: SourceOwn, Interface: device,
		LocalPref: MaxPriority - NormalPriority}
}

func TestConditions(t *testing.T) {
	with := func(c Candidate, change func(*Candidate)) Candidate { change(&c); return c }
	tagged := with(learned("10.1.2.0/24"), func(c *Candidate) {
		c.Communities, c.LargeCommunities, c.ASPath = []uint32{65000<<16 | 100}, [][3]uint32{{65000, 1, 2}},
			[]uint32{65001, 65002, 65003}
	})
	for _, c := range []struct {
		rule       string
		conditions string
		peer       string
		yes, no    []Candidate
	}{
		{"none", `"interface":""`, external, []Candidate{learned("0.0.0.0/0"), ownRoute("10.1.2.3/32", "cali1")}, nil},
		{"Equal", `"cidr":"10.1.0.0/16","matchOperator":"Equal"`, external, []Candidate{learned("10.1.0.0/16")},
			[]Candidate{learned("10.1.0.0/17"), learned("10.0.0.0/8"), learned("10.2.0.0/16")}},
		{"NotEqual", `"cidr":"10.1.0.0/16","matchOperator":"NotEqual"`, external,
			[]Candidate{learned("10.1.0.0/17"), learned("10.0.0.0/8")}, []Candidate{learned("10.1.0.0/16")}},
		{"In", `"cidr":"10.1.0.0/16","matchOperator":"In"`, external,
			[]Candidate{learned("10.1.0.0/16"), learned("10.1.255.255/32")},
			[]Candidate{learned("10.0.0.0/15"), learned("10.2.0.0/24")}},
		{"NotIn", `"cidr":"10.1.0.0/16","matchOperator":"NotIn"`, external,
			[]Candidate{learned("10.0.0.0/15"), learned("10.2.0.0/24")},
			[]Candidate{learned("10.1.0.0/16"), learned("10.1.1.0/24")}},
		{"In with lengths", `"cidr":"10.1.0.0/16","matchOperator":"In","prefixLength":{"min":20,"max":24}`, external,
			[]Candidate{learned("10.1.0.0/20"), learned("10.1.1.0/24")},
			[]Candidate{learned("10.1.0.0/19"), learned("10.1.1.0/25"), learned("10.2.0.0/24")}},
		{"a least length below that of the CIDR", `"cidr":"10.1.0.0/16","matchOperator":"In","prefixLength":{"min":8}`,
			external, []Candidate{learned("10.1.0.0/16"), learned("10.1.0.0/32")}, []Candidate{learned("10.0.0.0/8")}},
		{"a greatest length below that of the CIDR",
			`"cidr":"10.1.0.0/16","matchOperator":"In","prefixLength":{"max":8}`, external, nil,
			[]Candidate{learned("10.1.0.0/16"), learned("10.0.0.0/8")}},
		{"NotIn with lengths", `"cidr":"10.1.0.0/16","matchOperator":"NotIn","prefixLength":{"max":24}`, external,
			[]Candidate{learned("10.1.1.0/25"), learned("10.2.0.0/24")}, []Candidate{learned("10.1.1.0/24")}},
		{"host bits in the CIDR count for nothing", `"cidr":"10.1.2.3/16","matchOperator":"Equal"`, external,
			[]Candidate{learned("10.1.0.0/16")}, nil},
		{"source", `"source":"RemotePeers"`, external, []Candidate{learned("10.1.0.0/16")},
			[]Candidate{ownRoute("10.1.0.0/16", "")}},
		{"interface", `"interface":"cali*"`, external, []Candidate{ownRoute("10.1.0.1/32", "cali123")},
			[]Candidate{ownRoute("10.1.0.1/32", "tunl0"), ownRoute("10.1.0.0/26", ""), learned("10.1.0.0/16")}},
		{"interface and cidr", `"interface":"cali1","cidr":"10.1.0.0/16","matchOperator":"In"`, external,
			[]Candidate{ownRoute("10.1.0.1/32", "cali1")}, []Candidate{ownRoute("10.2.0.1/32", "cali1"),
				ownRoute("10.1.0.1/32", "cali10")}},
		{"any interface needs one", `"interface":"*"`, external, []Candidate{ownRoute("10.1.0.1/32", "x")},
			[]Candidate{ownRoute("10.1.0.0/26", "")}},
		{"eBGP", `"peerType":"eBGP"`, external, []Candidate{learned("10.1.0.0/16")}, nil},
		{"eBGP to an internal peer", `"peerType":"eBGP"`, internal, nil, []Candidate{learned("10.1.0.0/16")}},
		{"iBGP", `"peerType":"iBGP"`, internal, []Candidate{learned("10.1.0.0/16")}, nil},
		{"localASNumber decides what is internal", `"peerType":"iBGP"`, external + `,"localASNumber":65001`,
			[]Candidate{learned("10.1.0.0/16")}, nil},
		{"community", `"communities":{"values":["65000:100"]}`, external, []Candidate{tagged},
			[]Candidate{learned("10.1.0.0/16")}},
		{"large community", `"communities":{"values":["65000:1:2"]}`, external, []Candidate{tagged},
			[]Candidate{learned("10.1.0.0/16")}},
		{"communities of own routes are no condition", `"communities":{"values":["65000:100"]}`, external, nil,
			[]Candidate{with(ownRoute("10.1.0.0/26", ""),
				func(c *Candidate) { c.Communities = []uint32{65000<<16 | 100} })}},
		{"AS path", `"asPathPrefix":[65001,"65002"]`, external, []Candidate{tagged},
			[]Candidate{learned("10.1.0.0/16"),
				with(tagged, func(c *Candidate) { c.ASPath = []uint32{65002, 65001} })}},
		{"priority", `"priority":100`, external,
			[]Candidate{with(learned("10.1.0.0/16"), func(c *Candidate) { c.LocalPref = 2147483547 })},
			[]Candidate{learned("10.1.0.0/16")}},
		{"all must hold", `"priority":1024,"interface":"cali*","source":"RemotePeers"`, external, nil,
			[]Candidate{ownRoute("10.1.0.1/32", "cali1")}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			d, s := filtered(t, c.peer, `filter f {"exportV4":[{`+c.conditions+`,"action":"Reject"}]}`)
			wantNotices(t, d)
			for want, list := range map[bool][]Candidate{true: c.yes, false: c.no} {
				for _, x := range list {
					if v := d.Export(s, x); (v.Rule == "BGPFilter/f exportV4[0] rejects") != want || want && v.Accept {
						t.Errorf("%s from %s by %q: %+v", x.Prefix, x.Source, x.Interface, v)
					}
				}
			}
		})
	}
}

func TestOperations(t *testing.T) {
	route := learned("10.1.0.0/16")
	route.Communities, route.ASPath = []uint32{65000<<16 | 2}, []uint32{65001}
	for _, c := range []struct {
		rule, operations, want string
	}{
		{"add a community, in order", `{"addCommunity":{"value":"65000:1"}}`, "100 [65000:1 65000:2] [] [65001]"},
		{"one that is there already", `{"addCommunity":{"value":"65000:2"}}`, "100 [65000:2] [] [65001]"},
		{"add a large community", `{"addCommunity":{"value":"4294967295:1:2"}}`,
			"100 [65000:2] [[4294967295 1 2]] [65001]"},
		{"set the priority", `{"setPriority":{"value":256}}`, "2147483391 [65000:2] [] [65001]"},
		{"prepend: the path starts with the list", `{"prependASPath":{"prefix":[65000,"65001"]}}`,
			"100 [65000:2] [] [65000 65001 65001]"},
		{"the last one counts",
			`{"setPriority":{"value":1}},{"prependASPath":{"prefix":[1]}},{"setPriority":{"value":2}},{"prependASPath":{"prefix":[2]}}`, "2147483645 [65000:2] [] [2 1 65001]"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			d, s := filtered(t, external, `filter f {"importV4":[{"action":"Accept","operations":[`+c.operations+`]}]}`)
			v := d.Import(s, route)
			if got := showChanged(v.Route); got != c.want || v.Rule != "BGPFilter/f importV4[0] accepts" || !v.Accept {
				t.Errorf("%s %+v", got, v)
			}
			if got := showChanged(route); got != "100 [65000:2] [] [65001]" {
				t.Errorf("the route itself was changed: %s", got)
			}
		})
	}
}

func showChanged(c Candidate) string {
	var communities []string
	for _, v := range c.Communities {
		communities = append(communities, fmt.Sprintf("%d:%d", v>>16, v&0xffff))
	}
	return fmt.Sprint(c.LocalPref, communities, c.LargeCommunities, c.ASPath)
}

// The first rule that matches decides, then the next filter is evaluated, then the rules for all.
func TestOrderOfRulesAndFilters(t *testing.T) {
	d, s := filtered(t, external,
		`filter f {"importV4":[{"action":"Accept","cidr":"10.1.1.0/24","matchOperator":"In"},{"action":"Reject","cidr":"10.1.0.0/16","matchOperator":"In"}],"exportV4":[{"action":"Reject"}],"importV6":[{"action":"Reject"}]}`,
		`filter h {"importV4":[{"action":"Reject"}]}`)
	d.Sessions, s.Filters = nil, []string{"f", "gone", "h"}
	for prefix, want := range map[string]string{
		"10.1.1.0/25": "BGPFilter/f importV4[0] accepts",
		"10.1.2.0/24": "BGPFilter/f importV4[1] rejects",
		"10.2.0.0/24": "default: every route is accepted", // h is not in Desired.Filters, as no session names it
	} {
		if v := d.Import(s, learned(prefix)); v.Rule != want {
			t.Errorf("%s: %s; want %s", prefix, v.Rule, want)
		}
	}
}

// IPv6 sessions have lists of their own.
func TestFamiliesOfFilters(t *testing.T) {
	d, s := filtered(t, externalV6,
		`filter f {"importV4":[{"action":"Reject"}],"exportV6":[{"action":"Accept","cidr":"fd00::/8","matchOperator":"In","prefixLength":{"min":48,"max":64}}]}`)
	if v := d.Import(s, learned("fd01::/64")); v.Rule != "default: every route is accepted" {
		t.Error(v)
	}
	if v := d.Export(s, learned("fd01::/64")); v.Rule != "BGPFilter/f exportV6[0] accepts" {
		t.Error(v)
	}
	if v := d.Export(s, learned("fd01::1/128")); v.Rule != "default: outside every IP pool" {
		t.Error(v)
	}
}

// Two clusters: one announces workloads that move with priority 100 and marks them for the other one, which gives them
// the same priority.
func TestPriorityAcrossClusters(t *testing.T) {
	send, s := filtered(t, external,
		`filter f {"exportV4":[{"action":"Accept","peerType":"eBGP","priority":100,"operations":[{"addCommunity":{"value":"65000:100"}},{"prependASPath":{"prefix":[65000,65001]}}]}]}`, `pool p {"cidr":"10.1.0.0/16"}`)
	moving := ownRoute("10.1.0.5/32", "cali1")
	moving.LocalPref = MaxPriority - 100
	sent := send.Export(s, moving)
	if got := showChanged(sent.Route); !sent.Accept || got != "2147483547 [65000:100] [] [65000 65001]" {
		t.Errorf("%+v %s", sent, got)
	}
	if v := send.Export(s, ownRoute("10.1.0.6/32", "cali1")); v.Rule != "default: inside pool 10.1.0.0/16" ||
		len(v.Route.Communities) > 0 {
		t.Errorf("%+v", v)
	}
	receive, s := filtered(t, external,
		`filter f {"importV4":[{"action":"Accept","peerType":"eBGP","communities":{"values":["65000:100"]},"operations":[{"setPriority":{"value":100}}]}]}`)
	got := sent.Route
	got.Source, got.LocalPref = SourceExternal, 100
	if v := receive.Import(s, got); v.Route.LocalPref != 2147483547 {
		t.Errorf("%+v", v)
	}
}

// An unusable rule is skipped as a whole and reported.
func TestRulesThatCannotBeUsed(t *testing.T) {
	for rule, problem := range map[string]string{
		`{}`:                `action = "": want Accept or Reject`,
		`{"action":"Drop"}`: `action = "Drop"`,
		`{"action":"Accept","cidr":"10.0.0.0/8"}`:                                                             `matchOperator = "": want Equal, NotEqual, In or NotIn`,
		`{"action":"Accept","matchOperator":"In"}`:                                                            "matchOperator and prefixLength need cidr",
		`{"action":"Accept","cidr":"x","matchOperator":"In"}`:                                                 `cidr = "x": want an IPv4 prefix`,
		`{"action":"Reject","cidr":"fd00::/8","matchOperator":"NotIn"}`:                                       `cidr = "fd00::/8": want an IPv4 prefix`,
		`{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"Equal","prefixLength":{"min":9}}`:            "prefixLength goes with matchOperator In and NotIn, not with Equal",
		`{"action":"Accept","cidr":"10.0.0.0/8","matchOperator":"In","prefixLength":{"min":33}}`:              "prefixLength 33: want 0 to 32",
		`{"action":"Accept","source":"x"}`:                                                                    `source = "x"`,
		`{"action":"Accept","peerType":"x"}`:                                                                  `peerType = "x"`,
		`{"action":"Accept","interface":"["}`:                                                                 `interface = "["`,
		`{"action":"Accept","communities":{"values":[]}}`:                                                     "communities.values has 0 entries: want exactly one",
		`{"action":"Accept","communities":{"values":["x"]}}`:                                                  `communities.values[0] = "x": want AA:NN or AA:NN:MM`,
		`{"action":"Accept","priority":0}`:                                                                    "priority = 0: want 1 to 2147483646",
		`{"action":"Reject","operations":[{"setPriority":{"value":1}}]}`:                                      "operations go with action Accept only",
		`{"action":"Accept","operations":[{}]}`:                                                               "operations[0]: want exactly one of",
		`{"action":"Accept","operations":[{"addCommunity":{"value":"1:2"},"setPriority":{"value":1}}]}`:       "operations[0]: want exactly one of",
		`{"action":"Accept","operations":[{"setPriority":{"value":5}},{"addCommunity":{"value":"70000:1"}}]}`: `operations[1].addCommunity.value = "70000:1"`,
		`{"action":"Accept","operations":[{"setPriority":{"value":2147483647}}]}`:                             "operations[0].setPriority.value = 2147483647",
		`{"action":"Accept","operations":[{"prependASPath":{"prefix":[]}}]}`:                                  "operations[0].prependASPath.prefix is empty",
	} {
		d, s := filtered(t, external, `filter f {"exportV4":[`+rule+
			`,{"action":"Reject","cidr":"10.7.0.0/16","matchOperator":"Equal"}]}`)
		wantNotices(t, d, "BGPFilter/f: spec.exportV4[0] is skipped: "+problem)
		if v := d.Export(s, learned("10.1.0.0/16")); !strings.HasPrefix(v.Rule, "default:") {
			t.Errorf("%s: %s", rule, v.Rule)
		}
		if v := d.Export(s, learned("10.7.0.0/16")); v.Rule != "BGPFilter/f exportV4[1] rejects" {
			t.Errorf("%s: %s", rule, v.Rule)
		}
	}
}

func TestFiltersOfSessions(t *testing.T) {
	d := compute(t, "a", v4node("a", "10.192.0.2"), v4node("b", "10.192.0.3"), v4node("c", "10.192.0.4"),
		`peer p {"peerIP":"10.192.0.3","asNumber":64512,"filters":["z","missing","a.b","z"]}`,
		`peer other {"node":"b","peerIP":"1.2.3.4","asNumber":1,"filters":["unused"]}`,
		`filter z {}`, `filter a.b {"exportV4":[{"action":"Reject"}]}`, `filter unused {"exportV4":[{}]}`)
	names := map[string]string{}
	for _, s := range d.Sessions {
		names[s.Address.String()] = strings.Join(s.Filters, " ")
	}
	if want := "map[10.192.0.3:z a.b z 10.192.0.4:]"; fmt.Sprint(names) != want {
		t.Errorf("got %v; want %s (none for the mesh)", names, want)
	}
	if len(d.Filters) != 2 || d.Filters[0].Name != "a.b" || d.Filters[1].Name != "z" {
		t.Errorf("filters %+v", d.Filters)
	}
	got := showNotices(d)
	if len(got) != 2 || !strings.Contains(got[0]+got[1], "BGPPeer/p: spec.filters: BGPFilter/missing does not exist") ||
		strings.Contains(got[0]+got[1], "unused") {
		t.Errorf("notices %q", got)
	}
}

// The speaker relies on bounds within those of the CIDR.
func TestLengthsAreBoundedByTheCIDR(t *testing.T) {
	d, _ := filtered(t, external,
		`filter f {"exportV4":[{"action":"Reject","cidr":"10.1.0.0/16","matchOperator":"In","prefixLength":{"min":8,"max":24}}]}`)
	if m := d.Filters[0].ExportV4[0].Prefix; m.Min != 16 || m.Max != 24 {
		t.Errorf("%+v", m)
	}
}
