package bgp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/datastore/model"
)

// refusalWorld is a node in the mesh with another one, a switch, a pool and two blocks.
var refusalWorld = []string{
	`node n1 {"bgp":{"ipv4Address":"10.0.0.1/24","ipv6Address":"fd00::1/64","ipv4IPIPTunnelAddr":"10.244.0.1"}}`,
	`node n2 {"bgp":{"ipv4Address":"10.0.0.2/24","ipv6Address":"fd00::2/64"}}`,
	`peer tor {"peerIP":"10.0.0.254","asNumber":65000}`,
	`pool p4 {"cidr":"10.244.0.0/16"}`,
	`pool p6 {"cidr":"fd00:244::/48"}`,
	`block n1 10.244.0.0/26 confirmed`,
	`block n2 10.244.1.0/26 confirmed`,
	`block n2 10.244.2.0/26 pending`,
}

// classes lists the classes of refused routes on a session, in the order of prefixes; "" for accepted routes.
func classes(d Desired, s Session, prefixes ...string) string {
	var list []string
	for _, p := range prefixes {
		class := "-"
		if r := d.refuse(s, netip.MustParsePrefix(p)); r != nil {
			class = string(r.Class)
		}
		list = append(list, class)
	}
	return strings.Join(list, " ")
}

func sessionWith(t *testing.T, d Desired, addr string) Session {
	t.Helper()
	for _, s := range d.Sessions {
		if s.Address == netip.MustParseAddr(addr) {
			return s
		}
	}
	t.Fatalf("no session with %s: %v", addr, d.Sessions)
	return Session{}
}

func TestRoutesThatNobodyMayAnnounce(t *testing.T) {
	d := Compute(Input{Reader: model.NewSet(world(t, refusalWorld...)...), Node: "n1"})
	for _, c := range []struct{ prefix, class string }{
		{"0.0.0.0/32", "unspecified"}, {"0.0.0.0/8", "this_network"}, {"0.1.2.0/24", "this_network"},
		{"127.0.0.0/8", "loopback"}, {"127.0.0.1/32", "loopback"},
		{"169.254.0.0/16", "link_local"}, {"169.254.169.254/32", "link_local"},
		{"224.0.0.0/4", "multicast"}, {"239.1.2.3/32", "multicast"}, {"224.0.0.0/3", "reserved"},
		{"240.0.0.0/4", "reserved"}, {"250.1.0.0/16", "reserved"}, {"255.255.255.0/24", "reserved"},
		{"255.255.255.255/32", "broadcast"},
		{"::/128", "unspecified"}, {"::1/128", "loopback"}, {"::/127", "unspecified"},
		{"::ffff:0:0/96", "ipv4_mapped"}, {"::ffff:10.0.0.0/104", "ipv4_mapped"},
		{"::ffff:10.1.2.3/128", "ipv4_mapped"},
		{"fe80::/10", "link_local"}, {"fe80::1/128", "link_local"}, {"febf::/16", "link_local"},
		{"ff02::/16", "multicast"},
		{"10.0.0.1/32", "own_address"}, {"fd00::1/128", "own_address"}, {"10.244.0.1/32", "own_address"},
		// accepted: default routes, aggregates around refused ranges, borrowed addresses, neighbours of the ranges
		{"0.0.0.0/0", "-"}, {"::/0", "-"}, {"0.0.0.0/1", "-"}, {"128.0.0.0/1", "-"}, {"0.0.0.0/7", "-"},
		{"192.0.0.0/2", "-"},
		{"10.0.0.0/24", "-"}, {"10.0.0.0/31", "-"}, {"10.244.0.5/32", "-"}, {"10.244.0.0/26", "own_prefix"},
		{"10.244.0.0/25", "-"}, {"10.244.0.0/27", "-"}, {"10.244.1.0/26", "-"}, {"1.0.0.0/8", "-"},
		{"169.253.0.0/16", "-"}, {"169.254.0.0/15", "-"}, {"223.255.255.0/24", "-"}, {"126.0.0.0/8", "-"},
		{"fec0::/10", "-"}, {"fd00::/64", "-"}, {"2000::/3", "-"}, {"::/95", "-"}, {"::2/128", "-"},
	} {
		for _, addr := range []string{"10.0.0.2", "10.0.0.254"} {
			if got := classes(d, sessionWith(t, d, addr), c.prefix); got != c.class {
				t.Errorf("%s from %s: %s, want %s", c.prefix, addr, got, c.class)
			}
		}
	}
	for _, r := range d.Refusals {
		if r.Reason == "" || strings.Contains(r.Reason, "%!") || !slices.Contains(RefusalClasses(), r.Class) {
			t.Errorf("refusal %+v", r)
		}
	}
}

func TestRefusalsBySetting(t *testing.T) {
	flags := RefuseSettings{Default: true, Longest: [2]int{28, 64}}
	connected := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	prefixes := []string{"0.0.0.0/0", "::/0", "10.9.0.0/28", "10.9.0.0/29", "fd09::/64", "fd09::/65", "10.0.0.0/24",
		"10.0.0.128/25", "10.0.0.0/23", "fd00::/64"}
	config := func(name, annotations string) string {
		return fmt.Sprintf(
			`{"kind":"BGPConfiguration","apiVersion":"projectcalico.org/v3","metadata":{"name":%q,"annotations":{%s}},"spec":{}}`, name, annotations)
	}
	for _, c := range []struct {
		name    string
		flags   RefuseSettings
		configs map[string]string
		want    string
		notice  string
	}{
		{"nothing is set, as in Calico", RefuseSettings{}, nil, "- - - - - - - - - -", ""},
		{"flags", flags, nil, "default_route default_route - prefix_length - prefix_length - - - -", ""},
		{"annotations come before flags", flags,
			map[string]string{
				"default": `"manx.io/refuse-default-route":"false","manx.io/max-prefix-length-v4":"0","manx.io/max-prefix-length-v6":"128"`},
			"- - - - - - - - - -", ""},
		{"the node's come before the cluster's", RefuseSettings{},
			map[string]string{"default": `"manx.io/refuse-default-route":"true"`,
				"node.n1": `"manx.io/refuse-default-route":"false"`,
				"node.n2": `"manx.io/refuse-connected-routes":"true"`}, "- - - - - - - - - -", ""},
		{"subnets of the host", RefuseSettings{},
			map[string]string{"default": `"manx.io/refuse-connected-routes":"true"`},
			"- - - - - - connected_subnet connected_subnet - connected_subnet", ""},
		{"a slip changes nothing and is reported", RefuseSettings{},
			map[string]string{"default": `"manx.io/max-prefix-length-v4":"33","manx.io/refuse-default-route":"yes"`},
			"- - - - - - - - - -", `manx.io/max-prefix-length-v4 = "33" is ignored: want a number from 0 to 32`},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := world(t, refusalWorld...)
			for name, annotations := range c.configs {
				o, err := unchecked(model.ResourceKey(model.KindBGPConfiguration, name), config(name, annotations))
				if err != nil {
					t.Fatal(err)
				}
				objects = append(objects, o)
			}
			d := Compute(Input{Reader: model.NewSet(objects...), Node: "n1", Refuse: c.flags, Connected: connected})
			for _, addr := range []string{"10.0.0.2", "10.0.0.254"} {
				if got := classes(d, sessionWith(t, d, addr), prefixes...); got != c.want {
					t.Errorf("from %s: %s, want %s", addr, got, c.want)
				}
			}
			notices := fmt.Sprint(d.Notices)
			if c.notice != "" && !strings.Contains(notices, c.notice) || c.notice == "" && len(d.Notices) > 0 {
				t.Errorf("notices %s, want %q", notices, c.notice)
			}
		})
	}
}

// Of routes inside pools, external peers may pass on only the blocks of nodes.
func TestPoolRoutesOfExternalPeers(t *testing.T) {
	d := Compute(Input{Reader: model.NewSet(world(t, refusalWorld...)...), Node: "n1",
		Refuse: RefuseSettings{Pools: true}})
	prefixes := []string{"10.244.1.0/26", "10.244.1.0/27", "10.244.1.5/32", "10.244.1.0/25", "10.244.2.0/26",
		"10.244.9.0/26", "10.244.0.0/16", "10.240.0.0/12", "0.0.0.0/0", "192.0.2.0/24"}
	for _, c := range []struct{ addr, want string }{
		{"10.0.0.254", "- pool pool pool pool pool pool - - -"}, // the switch
		{"10.0.0.2", "- - - - - - - - - -"},                     // a node
	} {
		if got := classes(d, sessionWith(t, d, c.addr), prefixes...); got != c.want {
			t.Errorf("from %s: %s, want %s", c.addr, got, c.want)
		}
	}
	if !d.refusesByBlocks() {
		t.Error("blocks of other nodes do not count")
	}
	// A node in another AS does not count as an external peer.
	objects := world(t, append(slices.Clone(refusalWorld),
		`node n3 {"bgp":{"ipv4Address":"10.0.0.3/24","asNumber":65003}}`)...)
	d = Compute(Input{Reader: model.NewSet(objects...), Node: "n1", Refuse: RefuseSettings{Pools: true}})
	if s := sessionWith(t, d, "10.0.0.3"); s.Outsider || classes(d, s, "10.244.1.5/32") != "-" {
		t.Errorf("node in another AS: %+v", s)
	}
}
