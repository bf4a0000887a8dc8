package bgp

import (
	"fmt"
	"net/netip"
	"testing"
)

// The steps of calico/node's decision about an export, each with the steps before it.
func TestExportSteps(t *testing.T) {
	world := []string{`pool p {"cidr":"10.1.0.0/16"}`, `pool off {"cidr":"10.3.0.0/16","disabled":true}`,
		`pool secret {"cidr":"10.9.0.0/16","disableBGPExport":true}`,
		"block a 10.1.0.0/26 confirmed", "block a 10.9.0.0/26 confirmed", "block a 10.1.1.0/26 pending",
		"block a 10.1.2.0/26 pendingDeletion", "block a 172.16.0.0/26",
		`felix default {"ipv4ElevatedRoutePriority":300}`}
	config := func(more string) string { return `config default {"nodeToNodeMeshEnabled":false` + more + `}` }
	with := func(prefix string, metric uint32) Candidate {
		c := learned(prefix)
		c.LocalPref = MaxPriority - metric
		return c
	}
	for _, c := range []struct {
		step   string
		more   []string
		route  Candidate
		accept bool
		rule   string
	}{
		{"1: a filter comes before everything", []string{`filter f {"exportV4":[{"action":"Accept"}]}`},
			learned("0.0.0.0/0"), true, "BGPFilter/f exportV4[0] accepts"},
		{"1: also before disableBGPExport",
			[]string{`filter f {"exportV4":[{"action":"Accept","cidr":"10.9.0.0/16","matchOperator":"In"}]}`},
			learned("10.9.4.0/24"), true, "BGPFilter/f exportV4[0] accepts"},
		{"1: and rejects what pools allow", []string{`filter f {"exportV4":[{"action":"Reject"}]}`},
			learned("10.1.4.0/24"), false, "BGPFilter/f exportV4[0] rejects"},
		{"2: a pool with disableBGPExport", nil, learned("10.9.4.0/24"), false,
			"default: pool 10.9.0.0/16 has disableBGPExport"},
		{"2: comes before own blocks", nil, ownFilterOnly("10.9.0.0/26"), false,
			"default: pool 10.9.0.0/16 has disableBGPExport"},
		{"2: comes before elevated priorities", nil, with("10.9.0.5/32", 300), false,
			"default: pool 10.9.0.0/16 has disableBGPExport"},
		{"6: an own block", nil, ownRoute("10.1.0.0/26", ""), true, "default: own block 10.1.0.0/26"},
		{"6: an own block outside pools", nil, ownRoute("172.16.0.0/26", ""), true, "default: own block 172.16.0.0/26"},
		{"6: inside an own block", nil, learned("10.1.0.5/32"), false, "default: hidden in own block 10.1.0.0/26"},
		{"6: a workload in an own block", nil, ownFilterOnly("10.1.0.5/32"), false,
			"default: hidden in own block 10.1.0.0/26"},
		{"6: inside an own block, moving between nodes", nil, with("10.1.0.5/32", 300), true,
			"default: priority 300, which is elevated, in own block 10.1.0.0/26"},
		{"6: ordinary priority", nil, with("10.1.0.5/32", 1024), false, "default: hidden in own block 10.1.0.0/26"},
		{"6: a priority that import filters set",
			[]string{`filter f {"importV4":[{"action":"Accept","operations":[{"setPriority":{"value":256}}]}]}`},
			with("10.1.0.5/32", 256), true, "default: priority 256, which is elevated, in own block 10.1.0.0/26"},
		{"6: a claim that is pending is no own block", nil, learned("10.1.1.5/32"), true,
			"default: inside pool 10.1.0.0/16"},
		{"6: nor is a block that is being released", nil, learned("10.1.2.5/32"), true,
			"default: inside pool 10.1.0.0/16"},
		{"7: a service", []string{config(`,"serviceLoadBalancerIPs":[{"cidr":"80.15.0.0/24"}]`)},
			learned("80.15.0.7/32"), true, "default: inside service range 80.15.0.0/24"},
		{"9: inside a pool", nil, learned("10.1.4.0/26"), true, "default: inside pool 10.1.0.0/16"},
		{"9: a pool that is disabled counts", nil, learned("10.3.4.0/26"), true, "default: inside pool 10.3.0.0/16"},
		{"9: a borrowed address", nil, ownRoute("10.1.4.5/32", "cali1"), true, "default: inside pool 10.1.0.0/16"},
		{"10: the default route of a switch", nil, learned("0.0.0.0/0"), false, "default: outside every IP pool"},
		{"10: a network of hosts", nil, learned("10.192.0.0/24"), false, "default: outside every IP pool"},
		{"10: what contains a pool", nil, learned("10.0.0.0/8"), false, "default: outside every IP pool"},
	} {
		t.Run(c.step, func(t *testing.T) {
			lines := append(append([]string{}, c.more...), world...)
			if len(c.more) == 0 || c.more[0][:6] != "filter" {
				lines = append(lines, `filter f {}`)
			}
			d, s := filteredWith(t, lines)
			if v := d.Export(s, c.route); v.Accept != c.accept || v.Rule != c.rule {
				t.Errorf("%t %s; want %t %s", v.Accept, v.Rule, c.accept, c.rule)
			}
		})
	}
}

func ownFilterOnly(prefix string) Candidate {
	c := ownRoute(prefix, "cali1")
	c.FilterOnly = true
	return c
}

// filteredWith is filtered with a mesh, or a configuration that lines hold.
func filteredWith(t *testing.T, lines []string) (Desired, Session) {
	t.Helper()
	d := compute(t, "a", append(lines, v4node("a", "10.192.0.2"), `peer p {"peerIP":`+external+`,"filters":["f"]}`)...)
	return d, d.Sessions[0]
}

// 5: communities are added to routes exported by default, also to those that others announced.
func TestCommunitiesOfExportedRoutes(t *testing.T) {
	d, s := filteredWith(t, []string{`pool p {"cidr":"10.1.0.0/16"}`, `pool q {"cidr":"10.2.0.0/16"}`,
		`config default {"prefixAdvertisements":[{"cidr":"10.1.0.0/16","communities":["65000:2","65000:1:2"]},{"cidr":"10.1.4.0/24","communities":["65000:1","65000:2"]},{"cidr":"10.2.1.0/24","communities":["1:1"]}]}`,
		`filter f {"exportV4":[{"action":"Accept","cidr":"10.1.5.0/24","matchOperator":"Equal"}]}`})
	given := learned("10.1.4.0/26")
	given.Communities = []uint32{65000<<16 | 9, 65000<<16 | 1}
	for _, c := range []struct {
		route Candidate
		want  string
	}{
		{learned("10.1.4.0/26"), "100 [65000:1 65000:2] [[65000 1 2]] []"},
		{given, "100 [65000:1 65000:2 65000:9] [[65000 1 2]] []"},
		{learned("10.1.0.0/16"), "100 [65000:2] [[65000 1 2]] []"},
		{learned("10.2.0.0/16"), "100 [] [] []"},
		{learned("10.1.5.0/24"), "100 [] [] []"}, // a filter that accepts skips this step
	} {
		if v := d.Export(s, c.route); !v.Accept || showChanged(v.Route) != c.want {
			t.Errorf("%s: %s, %s; want %s", c.route.Prefix, showChanged(v.Route), v.Rule, c.want)
		}
	}
	if v := d.Import(s, learned("10.1.4.0/26")); !v.Accept || len(v.Route.Communities) > 0 {
		t.Errorf("import: %+v", v)
	}
}

// 8: only a route reflector passes on services that it does not announce itself.
func TestReflectorsPassServicesOn(t *testing.T) {
	config := `config default {"nodeToNodeMeshEnabled":false,"serviceExternalIPs":[{"cidr":"80.15.0.0/24"}],"serviceLoadBalancerIPs":[{"cidr":"80.16.0.1/32"}],"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}]}`
	for cluster, want := range map[string]string{"": "default: outside every IP pool",
		`"routeReflectorClusterID":"10.0.0.1"`: "default: inside service range "} {
		more := []string{`@{"node.kubernetes.io/exclude-from-external-load-balancers":"true"}`}
		node := v4node("a", "10.192.0.2")
		if cluster != "" {
			node = v4node("a", "10.192.0.2", cluster)
		}
		d := compute(t, "a", node+more[0], config, `peer p {"peerIP":`+external+`}`)
		for prefix, range_ := range map[string]string{"80.15.0.7/32": "80.15.0.0/24", "80.16.0.1/32": "80.16.0.1/32"} {
			rule := want
			if cluster != "" {
				rule += range_
			}
			if v := d.Export(d.Sessions[0], learned(prefix)); v.Rule != rule {
				t.Errorf("%q %s: %s; want %s", cluster, prefix, v.Rule, rule)
			}
		}
		if v := d.Export(d.Sessions[0], learned("10.97.0.0/24")); v.Accept {
			t.Errorf("cluster IPs are not passed on: %s", v.Rule)
		}
	}
}

// Hidden routes are originated only if the filters of a session accept them.
func TestOriginsForFilters(t *testing.T) {
	a := v4node("a", "10.192.0.2", `"ipv4IPIPTunnelAddr":"10.1.0.1"`)
	base := []string{a, `config default {"nodeToNodeMeshEnabled":false}`, `pool p {"cidr":"10.1.0.0/16"}`,
		`pool s {"cidr":"10.9.0.0/16","disableBGPExport":true}`,
		"block a 10.1.0.0/26", "block a 10.9.0.0/26", "block a 10.1.2.0/26 pendingDeletion", "block a 10.1.3.1/32",
		`wep hidden {"node":"a","interfaceName":"cali1","ipNetworks":["10.1.0.5/32"]}`,
		`wep single {"node":"a","interfaceName":"cali2","ipNetworks":["10.1.3.1/32"]}`,
		`wep borrowed {"node":"a","interfaceName":"cali3","ipNetworks":["10.1.7.5/32"]}`,
		`wep outside {"node":"a","interfaceName":"cali4","ipNetworks":["192.0.2.5/32","fd00::5/128"]}`}
	always := []string{"10.1.0.0/26", "10.1.2.0/26 withheld", "10.1.3.1/32 by cali2", "10.1.7.5/32 by cali3"}
	for _, c := range []struct {
		rule, peer, export string
		want               []string
	}{
		{"no filter lets anything out", external, `"exportV4":[{"action":"Reject"}]`,
			append(always, "10.9.0.0/26 withheld")},
		{"workloads by interface", external, `"exportV4":[{"action":"Accept","interface":"cali*"}]`,
			append(always, "10.1.0.5/32 filters by cali1", "10.9.0.0/26 withheld", "192.0.2.5/32 filters by cali4")},
		{"the tunnel address", external, `"exportV4":[{"action":"Accept","interface":"tunl0"}]`,
			append(always, "10.1.0.1/32 filters by tunl0", "10.9.0.0/26 withheld")},
		{"a pool with disableBGPExport", external,
			`"exportV4":[{"action":"Accept","cidr":"10.9.0.0/16","matchOperator":"In"}]`,
			append(always, "10.9.0.0/26 filters")},
		{"a block that is being released stays withdrawn", external,
			`"exportV4":[{"action":"Accept","cidr":"10.1.2.0/26","matchOperator":"Equal"}]`,
			append(always, "10.9.0.0/26 withheld")},
		{"external peers only, and there is none", internal, `"exportV4":[{"action":"Accept","peerType":"eBGP"}]`,
			append(always, "10.9.0.0/26 withheld")},
		{"rules of the other family", external, `"exportV6":[{"action":"Accept"}]`,
			append(always, "10.9.0.0/26 withheld")},
	} {
		t.Run(c.rule, func(t *testing.T) {
			d := compute(t, "a", append([]string{`peer p {"peerIP":` + c.peer + `,"filters":["f"]}`,
				`filter f {` + c.export + `}`}, base...)...)
			got := map[string]bool{}
			for _, o := range d.Originated {
				text := o.Prefix.String()
				if o.FilterOnly {
					text += " filters"
				}
				if o.Withheld {
					text += " withheld"
				}
				if o.Interface != "" {
					text += " by " + o.Interface
				}
				got[text] = true
				if v := d.Export(d.Sessions[0], o.Candidate()); o.FilterOnly && !v.Accept {
					t.Errorf("%s: %s", text, v.Rule)
				}
			}
			want := map[string]bool{}
			for _, w := range c.want {
				want[w] = true
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("got\n%v\nwant\n%v", got, want)
			}
		})
	}
}

// A session in another direction does not matter: routes that the default accepts go to peers without filters too.
func TestExportToPeersWithoutFilters(t *testing.T) {
	d := compute(t, "a", v4node("a", "10.192.0.2"), v4node("b", "10.192.0.3"), `peer p {"peerIP":`+external+
		`,"filters":["f"]}`, `filter f {"exportV4":[{"action":"Accept"}],"importV4":[{"action":"Reject"}]}`,
		`pool p {"cidr":"10.1.0.0/16"}`, "block a 10.1.0.0/26",
		`wep w {"node":"a","interfaceName":"cali1","ipNetworks":["10.1.0.5/32"]}`)
	if len(d.Sessions) != 2 || len(d.Originated) != 2 {
		t.Fatalf("%v %v", showAll(d.Sessions), d.Originated)
	}
	for _, s := range d.Sessions {
		mesh := s.Type == SessionMesh
		for _, o := range d.Originated {
			if v := d.Export(s, o.Candidate()); v.Accept == (mesh && o.FilterOnly) {
				t.Errorf("%s to %s: %+v", o.Prefix, s.Address, v)
			}
		}
		if v := d.Import(s, learned("10.5.0.0/16")); v.Accept != mesh {
			t.Errorf("from %s: %s", s.Address, v.Rule)
		}
	}
}

func TestElevatedPriorities(t *testing.T) {
	a := v4node("a", "10.192.0.2")
	for _, c := range []struct {
		rule    string
		lines   []string
		want    string
		notices []string
	}{
		{"default", nil, "[[512] [512]]", nil},
		{"of the cluster", []string{`felix default {"ipv4ElevatedRoutePriority":300,"ipv6ElevatedRoutePriority":20}`},
			"[[300] [20]]", nil},
		{"of the node", []string{`felix default {"ipv4ElevatedRoutePriority":300}`,
			`felix node.a {"ipv4ElevatedRoutePriority":7}`, `felix node.b {"ipv4ElevatedRoutePriority":8}`},
			"[[7] [512]]", nil},
		{"not below the ordinary one", []string{`config default {"ipv4NormalRoutePriority":80}`}, "[[] [512]]", nil},
		{"out of range", []string{`felix default {"ipv4ElevatedRoutePriority":0}`}, "[[512] [512]]",
			[]string{
				"FelixConfiguration/default: is ignored: spec.ipv4ElevatedRoutePriority = 0: want 1 to 2147483646"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			d := compute(t, "a", append(c.lines, a)...)
			if got := fmt.Sprint(d.Elevated); got != c.want {
				t.Errorf("got %s want %s", got, c.want)
			}
			wantNotices(t, d, c.notices...)
		})
	}
}

func TestCandidateOfOrigin(t *testing.T) {
	o := Origin{Prefix: netip.MustParsePrefix("10.0.0.1/32"), FilterOnly: true, Interface: "cali1", LocalPref: 5,
		Communities: []uint32{1}, LargeCommunities: [][3]uint32{{1, 2, 3}}}
	if got := fmt.Sprint(o.Candidate()); got != "{10.0.0.1/32 own cali1 [1] [[1 2 3]] [] 5 true}" {
		t.Error(got)
	}
}

// A pool with disableBGPExport that is no larger than the node's block in it.
func TestHiddenPoolOfOneBlock(t *testing.T) {
	d, s := filteredWith(t, []string{`pool p {"cidr":"10.9.0.0/26","disableBGPExport":true}`, "block a 10.9.0.0/26",
		`filter f {}`})
	moving := learned("10.9.0.5/32")
	moving.LocalPref = MaxPriority - elevatedPriority
	for _, c := range []Candidate{moving, {Prefix: netip.MustParsePrefix("10.9.0.0/26"), Source: SourceOwn,
		FilterOnly: true}} {
		if v := d.Export(s, c); v.Accept || v.Rule != "default: pool 10.9.0.0/26 has disableBGPExport" {
			t.Errorf("%s: %+v", c.Prefix, v)
		}
	}
}
