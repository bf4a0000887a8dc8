package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func showOrigin(o Origin) string {
	s := fmt.Sprintf("%s metric %d", o.Prefix, MaxPriority-o.LocalPref)
	if o.Blackhole {
		s += " blackhole"
	}
	if o.Withheld {
		s += " withheld"
	}
	for _, c := range o.Communities {
		s += fmt.Sprintf(" %d:%d", c>>16, c&0xffff)
	}
	for _, c := range o.LargeCommunities {
		s += fmt.Sprintf(" %d:%d:%d", c[0], c[1], c[2])
	}
	return s
}

func TestOriginated(t *testing.T) {
	a := v4node("a", "10.192.0.2")
	pool := `pool p {"cidr":"10.0.0.0/16"}`
	for _, tc := range []struct {
		rule    string
		objects []string
		want    []string
		notices []string
	}{
		{rule: "own blocks by state", objects: []string{a, pool, "block a 10.0.1.0/26 confirmed", "block a 10.0.2.0/26",
			"block a 10.0.3.0/26 pending", "block a 10.0.4.0/26 pendingDeletion", "block b 10.0.5.0/26 confirmed"},
			want: []string{"10.0.1.0/26 metric 1024 blackhole", "10.0.2.0/26 metric 1024 blackhole",
				"10.0.4.0/26 metric 1024 blackhole withheld"}},
		{rule: "a block of one address has no blackhole", objects: []string{a, pool, "block a 10.0.1.1/32 confirmed",
			"block a fd00::1/128 confirmed"},
			want: []string{"10.0.1.1/32 metric 1024", "fd00::1/128 metric 1024"}},
		{rule: "a block outside all pools is advertised", objects: []string{a, "block a 10.0.1.0/26 confirmed"},
			want: []string{"10.0.1.0/26 metric 1024 blackhole"}},
		{rule: "disableBGPExport keeps the blackhole only",
			objects: []string{a, `pool p {"cidr":"10.0.0.0/16","disableBGPExport":true}`,
				"block a 10.0.1.0/26 confirmed", "block a 10.0.2.1/32 confirmed",
				`wep w {"node":"a","ipNetworks":["10.0.9.1/32"]}`},
			want: []string{"10.0.1.0/26 metric 1024 blackhole withheld"}},
		{rule: "disableBGPExport of any pool around a block counts, not that of the most specific one alone",
			objects: []string{a, `pool outer {"cidr":"10.0.0.0/16","disableBGPExport":true}`,
				`pool inner {"cidr":"10.0.1.0/24"}`, "block a 10.0.1.0/26 confirmed"},
			want: []string{"10.0.1.0/26 metric 1024 blackhole withheld"}},
		{rule: "the configured priority", objects: []string{
			a, pool, `config default {"ipv4NormalRoutePriority":5000,"ipv6NormalRoutePriority":80}`,
			"block a 10.0.1.0/26", "block a fd00::40/122"},
			want: []string{"10.0.1.0/26 metric 5000 blackhole", "fd00::40/122 metric 80 blackhole"}},
		{rule: "a priority out of range is reported",
			objects: []string{a, `config default {"ipv4NormalRoutePriority":2147483647}`, "block a 10.0.1.0/26"},
			want:    []string{"10.0.1.0/26 metric 1024 blackhole"},
			notices: []string{"BGPConfiguration/default: spec.ipv4NormalRoutePriority = 2147483647 is ignored"}},
		{rule: "a borrowed address", objects: []string{a, pool, "block a 10.0.1.0/26", "block b 10.0.2.0/26",
			`wep w {"node":"a","ipNetworks":["10.0.1.5/32","10.0.2.5/32"]}`,
			`wep v {"node":"b","ipNetworks":["10.0.7.5/32"]}`},
			want: []string{"10.0.1.0/26 metric 1024 blackhole", "10.0.2.5/32 metric 1024"}},
		{rule: "an address in a block that is being released",
			objects: []string{a, pool, "block a 10.0.1.0/26 pendingDeletion",
				`wep w {"node":"a","ipNetworks":["10.0.1.5/32"]}`},
			want: []string{"10.0.1.0/26 metric 1024 blackhole withheld", "10.0.1.5/32 metric 1024"}},
		{rule: "an address outside all pools is not ours to advertise",
			objects: []string{a, pool, `wep w {"node":"a","ipNetworks":["172.16.0.1/32"]}`}},
		{rule: "a disabled pool counts", objects: []string{a, `pool p {"cidr":"10.0.0.0/16","disabled":true}`,
			`wep w {"node":"a","ipNetworks":["10.0.7.5/32"]}`}, want: []string{"10.0.7.5/32 metric 1024"}},
		{rule: "a borrowed tunnel address", objects: []string{
			v4node("a", "10.192.0.2", `"ipv4IPIPTunnelAddr":"10.0.2.0"`), pool, "block b 10.0.2.0/26"},
			want: []string{"10.0.2.0/32 metric 1024"}},
		{rule: "a tunnel address in an own block is hidden",
			objects: []string{v4node("a", "10.192.0.2", `"ipv4IPIPTunnelAddr":"10.0.2.0"`), pool,
				"block a 10.0.2.0/26"}, want: []string{"10.0.2.0/26 metric 1024 blackhole"}},
		{rule: "communities: literal, named, large, each once and sorted",
			objects: []string{
				a,
				`config default {"communities":[{"name":"gold","value":"65000:9"},{"name":"big","value":"65000:1:2"}],
			"prefixAdvertisements":[{"cidr":"10.0.0.0/8","communities":["gold","65000:2","big"]},{"cidr":"10.0.1.0/26","communities":["65000:2","65000:1"]},{"cidr":"10.0.1.0/27","communities":["1:1"]}]}`, "block a 10.0.1.0/26"},
			want: []string{"10.0.1.0/26 metric 1024 blackhole 65000:1 65000:2 65000:9 65000:1:2"}},
		{rule: "communities: the node's list replaces the cluster's, names and all",
			objects: []string{
				a,
				`config default {"communities":[{"name":"gold","value":"65000:9"}],"prefixAdvertisements":[{"cidr":"10.0.0.0/8","communities":["65000:2"]}]}`,
				`config node.a {"prefixAdvertisements":[{"cidr":"10.0.0.0/8","communities":["65000:3","gold"]}]}`,
				"block a 10.0.1.0/26"},
			want:    []string{"10.0.1.0/26 metric 1024 blackhole 65000:3"},
			notices: []string{`BGPConfiguration/node.a: community "gold" of 10.0.0.0/8 is ignored: want AA:NN`}},
		{rule: "communities: numbers too great are reported",
			objects: []string{
				a,
				`config default {"prefixAdvertisements":[{"cidr":"10.0.0.0/8","communities":["65536:1","4294967295:1:1"]}]}`, "block a 10.0.1.0/26"},
			want:    []string{"10.0.1.0/26 metric 1024 blackhole 4294967295:1:1"},
			notices: []string{`community "65536:1" of 10.0.0.0/8 is ignored: "65536" is no number of 16 bits`}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			d := compute(t, "a", tc.objects...)
			var got []string
			for _, o := range d.Originated {
				got = append(got, showOrigin(o))
			}
			equalLines(t, "originated", got, tc.want)
			wantNotices(t, d, tc.notices...)
		})
	}
}

func TestExportOfLearnedRoutes(t *testing.T) {
	d := compute(t, "a", v4node("a", "10.192.0.2"), `pool p {"cidr":"10.0.0.0/16"}`,
		`pool q {"cidr":"fd00::/64","disabled":true}`, `pool r {"cidr":"10.9.0.0/16","disableBGPExport":true}`,
		"block a 10.0.1.0/26 confirmed", "block a 10.0.3.0/26 pendingDeletion", "block a 10.0.2.1/32")
	prefixes := func(texts ...string) (ps []netip.Prefix) {
		for _, text := range texts {
			ps = append(ps, netip.MustParsePrefix(text))
		}
		return ps
	}
	if want := prefixes("10.0.0.0/16", "fd00::/64"); !slices.Equal(d.ExportPrefixes, want) {
		t.Errorf("export: got %v want %v", d.ExportPrefixes, want)
	}
	if want := prefixes("10.0.1.0/26", "10.9.0.0/16"); !slices.Equal(d.NoExportPrefixes, want) {
		t.Errorf("no export: got %v want %v", d.NoExportPrefixes, want)
	}
}

// The routes that the speaker refuses as this node's own.
func TestAddressesOfNode(t *testing.T) {
	for _, tc := range []struct{ rule, node, want string }{
		{"both families and tunnels", `node a {"bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64",
			"ipv4IPIPTunnelAddr":"10.244.0.1"},"ipv6VXLANTunnelAddr":"fd10::1"}`,
			"[10.0.0.1 10.244.0.1 fd00::1 fd10::1]"},
		{"bare", `node a {"bgp":{"ipv4Address":"10.0.0.1","ipv6Address":"fd00::1"}}`, "[10.0.0.1 fd00::1]"},
		{"IPv4 in IPv6 form", `node a {"bgp":{"ipv4Address":"::ffff:10.0.0.1/120"}}`, "[10.0.0.1]"},
		{"an address of the other family is none", `node a {"bgp":{"ipv4Address":"fd00::1/64"}}`, "[]"},
	} {
		if got := fmt.Sprint(compute(t, "a", tc.node).Addresses); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.rule, got, tc.want)
		}
	}
}
