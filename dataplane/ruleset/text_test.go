package ruleset

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/namespace"
)

func match(f Field) Match { return Match{Field: f} }

var (
	ipv4 = Match{Field: Family, Low: 4}
	ipv6 = Match{Field: Family, Low: 6}
	tcp  = Match{Field: Protocol, Low: 6}
	udp  = Match{Field: Protocol, Low: 17}
)

func verdict(a Action) Verdict { return Verdict{Action: a} }

// named is a rule and its text.
type named struct {
	rule Rule
	text string
}

func rule(text string, v Verdict, m ...Match) named {
	return named{Rule{Matches: m, Verdict: v}, text}
}

// anyHookRules has the features of rules of every hook: each field, each action.
func anyHookRules() []named {
	accept := verdict(Accept)
	return []named{
		rule("accept", accept),
		rule("drop", verdict(Drop)),
		rule("return", verdict(Return)),
		rule("jump leaf", Verdict{Action: Jump, Chain: "leaf"}),
		rule("meta nfproto ipv4 accept", accept, ipv4),
		rule("meta nfproto != ipv6 accept", accept, Match{Field: Family, Low: 6, Not: true}),
		rule(`iifname "eth0" accept`, accept, Match{Field: InInterface, Name: "eth0"}),
		rule(`iifname != "cali*" accept`, accept, Match{Field: InInterface, Name: "cali*", Not: true}),
		rule("meta l4proto tcp accept", accept, tcp),
		rule("meta l4proto 47 accept", accept, Match{Field: Protocol, Low: 47}),
		rule("meta l4proto != icmpv6 accept", accept, Match{Field: Protocol, Low: 58, Not: true}),
		rule("ip saddr 10.0.0.0/8 accept", accept, ipv4,
			Match{Field: Source, Prefix: netip.MustParsePrefix("10.0.0.0/8")}),
		rule("ip saddr != 10.0.0.1 accept", accept, ipv4,
			Match{Field: Source, Prefix: netip.MustParsePrefix("10.0.0.1/32"), Not: true}),
		rule("ip daddr 0.0.0.0/0 accept", accept, ipv4,
			Match{Field: Destination, Prefix: netip.MustParsePrefix("0.0.0.0/0")}),
		rule("ip6 daddr fd00::/8 accept", accept, ipv6,
			Match{Field: Destination, Prefix: netip.MustParsePrefix("fd00::/8")}),
		rule("ip saddr @h4/xyz accept", accept, ipv4, Match{Field: Source, Set: "h4/xyz"}),
		rule("ip daddr != @n4/xyz accept", accept, ipv4, Match{Field: Destination, Set: "n4/xyz", Not: true}),
		rule("ip6 saddr @h6/xyz accept", accept, ipv6, Match{Field: Source, Set: "h6/xyz"}),
		rule("ip6 daddr @n6/xyz accept", accept, ipv6, Match{Field: Destination, Set: "n6/xyz"}),
		rule("ip saddr . meta l4proto . th sport @e4/xyz accept", accept, ipv4,
			Match{Field: SourceEndpoint, Set: "e4/xyz"}),
		rule("ip6 daddr . meta l4proto . th dport != @e6/xyz accept", accept, ipv6,
			Match{Field: DestinationEndpoint, Set: "e6/xyz", Not: true}),
		rule("tcp dport 80-90 accept", accept, tcp, Match{Field: DestinationPort, Low: 80, High: 90}),
		rule("udp sport != 53 accept", accept, udp, Match{Field: SourcePort, Low: 53, Not: true}),
		rule("sctp dport @p/1 accept", accept, Match{Field: Protocol, Low: 132},
			Match{Field: DestinationPort, Set: "p/1"}),
		rule("ip saddr @h4/xyz tcp dport != @p/1 accept", accept, ipv4, tcp, Match{Field: Source, Set: "h4/xyz"},
			Match{Field: DestinationPort, Set: "p/1", Not: true}),
		rule("icmp type 8 accept", accept, ipv4, Match{Field: Protocol, Low: 1},
			Match{Field: ICMP, Low: 8 << 8, Mask: 0xff00}).withFamily(),
		rule("icmp type != 8 accept", accept, ipv4, Match{Field: Protocol, Low: 1},
			Match{Field: ICMP, Low: 8 << 8, Mask: 0xff00, Not: true}).withFamily(),
		rule("icmpv6 type 1 icmpv6 code 4 accept", accept, ipv6, Match{Field: Protocol, Low: 58},
			Match{Field: ICMP, Low: 1<<8 | 4, Mask: 0xffff}).withFamily(),
		rule("meta l4proto icmp @th,0,16 != 0x301 accept", accept, ipv4, Match{Field: Protocol, Low: 1},
			Match{Field: ICMP, Low: 3<<8 | 1, Mask: 0xffff, Not: true}).withFamily(),
		rule("ct state established,related accept", accept,
			Match{Field: ConnState, Mask: ConnEstablished | ConnRelated}),
		rule("ct state ! invalid accept", accept, Match{Field: ConnState, Mask: ConnInvalid, Not: true}),
		rule("ct state new,untracked accept", accept, Match{Field: ConnState, Mask: ConnNew | ConnUntracked}),
		rule("ct status dnat accept", accept, Match{Field: ConnStatus, Mask: ConnDNAT}),
		rule("ct status ! snat,dnat accept", accept, Match{Field: ConnStatus, Mask: ConnDNAT | ConnSNAT, Not: true}),
		rule("meta mark & 0x20000 == 0x20000 accept", accept, Match{Field: PacketMark, Low: 0x20000, Mask: 0x20000}),
		rule("meta mark & 0x30000 != 0x20000 accept", accept, Match{Field: PacketMark, Low: 0x20000, Mask: 0x30000,
			Not: true}),
		rule("fib saddr type local accept", accept, match(SourceLocal)),
		rule("fib daddr type != local accept", accept, Match{Field: DestinationLocal, Not: true}),
		rule("ip frag-off & 0x3fff != 0x0 accept", accept, ipv4, match(Fragment)),
		rule("ip frag-off & 0x3fff == 0x0 accept", accept, ipv4, Match{Field: Fragment, Not: true}),
		rule("exthdr frag exists accept", accept, ipv6, match(Fragment)),
		rule("exthdr frag missing accept", accept, ipv6, Match{Field: Fragment, Not: true}),
		rule("meta l4proto udp @th,96,24 0x1000 accept", accept, udp, Match{Field: VNI, Low: 4096}),
		rule("udp dport 4789 @th,96,24 != 0xffffff accept", accept, udp, Match{Field: DestinationPort, Low: 4789},
			Match{Field: VNI, Low: 1<<24 - 1, Not: true}),
		rule("continue", Verdict{}),
		{Rule{Counter: true}, "counter"},
		{Rule{CountedBy: "dropped-policy", Verdict: verdict(Drop)}, `counter name "dropped-policy" drop`},
		{Rule{Over: Limit{Packets: 100, Burst: 5}, Verdict: verdict(Drop)},
			"limit rate over 100/second burst 5 packets drop"},
		{Rule{Over: Limit{Connections: 10}, Verdict: verdict(Drop)}, "ct count over 10 drop"},
		{Rule{Log: Log{Group: 5, Prefix: "calico-packet: "}, Verdict: verdict(Drop)},
			`log prefix "calico-packet: " group 5 snaplen 128 drop`},
		{Rule{Log: Log{Kernel: `it's "so"`}}, `log prefix "it's 'so'"`},
		{Rule{Log: Log{Group: 5, Rate: 10, Burst: 5}}, "limit rate 10/second burst 5 packets log group 5 snaplen 128"},
		{Rule{Log: Log{Group: 5, Rate: 10, Burst: 5, Per: PerDay}},
			"limit rate 10/day burst 5 packets log group 5 snaplen 128"},
		{Rule{Log: Log{Kernel: "k: ", Group: 5, Prefix: "a", Rate: 10, Burst: 5}},
			`limit rate 10/second burst 5 packets log prefix "k: " log prefix "a" group 5 snaplen 128`},
		{Rule{Log: Log{Prefix: "nowhere", Rate: 10}}, "continue"},
		{Rule{Mark: Mark{0x20000, 0x20000}, Verdict: verdict(Return)}, "meta mark set meta mark | 0x20000 return"},
		{Rule{Mark: Mark{0, 0x20000}}, "meta mark set meta mark & 0xfffdffff"},
		{Rule{Mark: Mark{0x20000, 0x30000}}, "meta mark set meta mark & 0xfffcffff | 0x20000"},
		{Rule{Mark: Mark{7, 0xffffffff}}, "meta mark set 0x7"},
		{Rule{Matches: []Match{ipv4, {Field: Source, Set: "h4/xyz"}}, DSCP: DSCP{true, 46}},
			"ip saddr @h4/xyz ip dscp set 46"},
		{Rule{Matches: []Match{ipv6, {Field: Source, Set: "h6/xyz"}}, DSCP: DSCP{true, 0}},
			"ip6 saddr @h6/xyz ip6 dscp set 0"},
		{Rule{Matches: []Match{{Field: Protocol, Low: protoTCP}}, ClampMSS: true},
			"meta l4proto tcp tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu"},
		{Rule{Counter: true, Verdict: verdict(Accept), Comment: "NetworkPolicy/default/web ingress 1"},
			`counter accept comment "NetworkPolicy/default/web ingress 1"`},
		{Rule{Verdict: verdict(Accept), Comment: strings.Repeat("long ", 30) + "\n} drop"},
			"accept # " + strings.Repeat("long ", 30) + "?} drop"},
	}
}

// withFamily prints the family, too: an ICMP match does not imply the family.
func (n named) withFamily() named {
	n.text = n.rule.Matches[0].String() + " " + n.text
	return n
}

// hookRules has the features that only some hooks allow.
func hookRules() map[Base][]named {
	a4, a6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	return map[Base][]named{
		{Prerouting, Filter, -300}: {
			rule(`fib saddr oifname "cali*" drop`, verdict(Drop), Match{Field: SourceRoute, Name: "cali*"}),
			rule("fib saddr . mark . iif oif missing drop", verdict(Drop), match(NoReturnRoute)),
			rule("fib saddr . mark . iif oif exists accept", verdict(Accept), Match{Field: NoReturnRoute, Not: true}),
			{Rule{NoTrack: true, Verdict: verdict(Accept)}, "notrack accept"},
		},
		{Prerouting, NAT, -100}: {
			rule("ip daddr 198.51.100.1 dnat ip to 192.0.2.1", Verdict{Action: DNAT, Address: a4}, ipv4,
				Match{Field: Destination, Prefix: netip.MustParsePrefix("198.51.100.1/32")}),
			rule("meta nfproto ipv6 dnat ip6 to 2001:db8::1", Verdict{Action: DNAT, Address: a6}, ipv6),
		},
		{Forward, Filter, 0}: {
			rule(`oifname != "cali*" accept`, verdict(Accept), Match{Field: OutInterface, Name: "cali*", Not: true}),
			rule("iifname vmap @from-workload", Verdict{Action: Lookup, Map: "from-workload"}),
			rule("oifname vmap @to-workload", Verdict{Action: Lookup, Map: "to-workload", Out: true}),
			rule("reject with icmpx port-unreachable", verdict(Reject)),
			rule("meta l4proto tcp reject with tcp reset", verdict(RejectTCP), tcp),
			rule("goto leaf", Verdict{Action: Goto, Chain: "leaf"}),
		},
		{Postrouting, Filter, 100}: {
			rule("fib saddr . oif type != local accept", verdict(Accept),
				Match{Field: SourceOfOutInterface, Not: true}),
			rule("ct original ip saddr 10.0.0.1 accept", verdict(Accept), net4(ConnSource, "10.0.0.1/32")),
			rule("ct reply ip6 saddr != fd00::1 drop", verdict(Drop),
				Match{Field: ConnReplySource, Prefix: netip.MustParsePrefix("fd00::1/128"), Not: true}),
			rule("ip6 hoplimit 255 accept", verdict(Accept), ipv6, Match{Field: HopLimit, Low: 255}),
			rule("ip ttl != 1 drop", verdict(Drop), ipv4, Match{Field: HopLimit, Low: 1, Not: true}),
		},
		{Postrouting, NAT, 110}: {
			rule("masquerade", verdict(Masquerade)),
			rule("masquerade fully-random", Verdict{Action: Masquerade, Random: true}),
			rule("meta l4proto tcp masquerade to :4790-65535 fully-random",
				Verdict{Action: Masquerade, Low: 4790, High: 65535, Random: true}, tcp),
			rule("meta nfproto ipv4 snat ip to 192.0.2.1", Verdict{Action: SNAT, Address: a4}, ipv4),
			rule("meta nfproto ipv4 meta l4proto udp snat ip to 192.0.2.1:1000-2000",
				Verdict{Action: SNAT, Address: a4, Low: 1000, High: 2000}, ipv4, udp),
			rule("meta nfproto ipv6 meta l4proto udp snat ip6 to [2001:db8::1]:1000-2000",
				Verdict{Action: SNAT, Address: a6, Low: 1000, High: 2000}, ipv6, udp),
			rule("meta nfproto ipv4 snat ip to ip saddr", Verdict{Action: KeepSource, Address: a4}, ipv4),
			rule("meta nfproto ipv6 snat ip6 to ip6 saddr", Verdict{Action: KeepSource, Address: a6}, ipv6),
			rule("meta nfproto ipv6 snat ip6 to 2001:db8::1 fully-random",
				Verdict{Action: SNAT, Address: a6, Random: true}, ipv6),
		},
	}
}

func TestRuleText(t *testing.T) {
	list := anyHookRules()
	for _, rules := range hookRules() {
		list = append(list, rules...)
	}
	for _, n := range list {
		if got := n.rule.String(); got != n.text {
			t.Errorf("got  %s\nwant %s", got, n.text)
		}
	}
}

// A name without a rendered rule is a missing case.
func TestEveryFieldAndActionHasText(t *testing.T) {
	for f := Family; f <= VNI; f++ {
		if text := (Match{Field: f}).String(); strings.HasPrefix(text, "field") {
			t.Errorf("field %d: %s", f, text)
		}
	}
	for a := Continue; a <= DNAT; a++ {
		if text := a.String(); text == "" || strings.HasPrefix(text, "action") {
			t.Errorf("action %d: %q", a, text)
		}
	}
}

// fullTable has every feature of a table, apart from rules whose text has one of the omitted words.
func fullTable(omitted ...string) *Table {
	t := NewTable()
	for _, s := range []struct {
		set      Set
		elements []Element
	}{
		{Set{Name: "h4/xyz", Type: Addresses4, Comment: `app == "web"`},
			[]Element{element("10.0.0.1/32"), element("10.0.0.2/32")}},
		{Set{Name: "n4/xyz", Type: Addresses4, Interval: true},
			[]Element{element("10.0.0.0/8"), element("192.168.0.1/32"), element("224.0.0.0/3")}},
		{Set{Name: "h6/xyz", Type: Addresses6}, []Element{element("fd00::1/128")}},
		{Set{Name: "n6/xyz", Type: Addresses6, Interval: true}, []Element{element("fd00::/8"), element("::/1")}},
		{Set{Name: "p/1", Type: Ports, Interval: true}, []Element{{Low: 80, High: 80}, {Low: 8080, High: 8090},
			{Low: 65535, High: 65535}}},
		{Set{Name: "e4/xyz", Type: Endpoints4},
			[]Element{{Prefix: netip.MustParsePrefix("10.0.0.1/32"), Protocol: 6, Low: 80},
				{Prefix: netip.MustParsePrefix("10.0.0.1/32"), Protocol: 132, Low: 80}}},
		{Set{Name: "e6/xyz", Type: Endpoints6},
			[]Element{{Prefix: netip.MustParsePrefix("fd00::1/128"), Protocol: 17, Low: 53}}},
		{Set{Name: "h4/empty", Type: Addresses4, Comment: "a selector over\n} two lines"}, nil},
	} {
		t.AddSet(s.set)
		for _, e := range s.elements {
			t.AddElement(s.set.Name, e)
		}
	}
	for _, name := range []string{"from-workload", "to-workload"} {
		t.AddMap(Map{Name: name})
		t.SetVerdict(name, "cali12ab", Verdict{Action: Goto, Chain: "leaf"})
		t.SetVerdict(name, "cali34cd", Verdict{Action: Jump, Chain: "pi/NetworkPolicy/default/web.x_1"})
	}
	t.SetChain(&Chain{Name: "leaf"})
	chain := &Chain{Name: "pi/NetworkPolicy/default/web.x_1"}
	for _, n := range anyHookRules() {
		if slices.ContainsFunc(omitted, func(word string) bool { return strings.Contains(n.text, word) }) {
			continue
		}
		chain.Rules = append(chain.Rules, n.rule)
	}
	t.SetChain(chain)
	for base, rules := range hookRules() {
		chain := &Chain{Name: fmt.Sprintf("base-%s-%d", base.Hook, base.Type), Base: &base}
		for _, n := range rules {
			chain.Rules = append(chain.Rules, n.rule)
		}
		t.SetChain(chain)
	}
	return t
}

func TestTextOfTable(t *testing.T) {
	var got bytes.Buffer
	if err := smallTable().Text(&got, TextOptions{Elements: 1}); err != nil {
		t.Fatal(err)
	}
	want := `table inet manx {
	# a == 'b': 2 elements
	set n4/a {
		type ipv4_addr
		flags interval
		elements = { 10.0.0.0/8 } # ... 1 more
	}

	# 1 interface
	map to-workload {
		type ifname : verdict
		elements = { "cali1" : goto leaf }
	}

	chain forward {
		type filter hook forward priority 0; policy accept;
		jump leaf
	}

	chain leaf {
		accept comment "a 1"
		drop
	}
}
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
}

// nft accepts the text unchanged, and lists as many rules, sets, maps and elements as the table has.
func TestNFTLoadsText(t *testing.T) {
	namespace.Require(t, "nft")
	ns := namespace.New(t, "manxtext")
	table := fullTable()
	for _, o := range []TextOptions{{}, {Name: "manx2", IDs: true}, {Name: "manx3", Elements: 2}} {
		var text bytes.Buffer
		if err := table.Text(&text, o); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "table.nft")
		if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		command(t, "ip", "netns", "exec", ns, "nft", "-f", file)
	}
	listed := command(t, "ip", "netns", "exec", ns, "nft", "list", "table", "inet", "manx")
	for what, want := range map[string]int{"\tset ": 8, "\tmap ": 2, "\tchain ": 7, "hook": 5} {
		if got := strings.Count(listed, what); got != want {
			t.Errorf("%d times %q, want %d in\n%s", got, what, want, listed)
		}
	}
	for _, want := range []string{
		`"cali34cd" : jump pi/NetworkPolicy/default/web.x_1`, "224.0.0.0/3", "8080-8090", "10.0.0.1 . sctp . 80",
		"fd00::1 . udp . 53",
		`fib saddr . mark . iif oif missing drop`, `ip6 daddr . meta l4proto . th dport != @e6/xyz accept`,
		"masquerade to :4790-65535 fully-random",
		"type nat hook postrouting priority srcnat + 10", `comment "NetworkPolicy/default/web ingress 1"`,
	} {
		if !strings.Contains(listed, want) {
			t.Errorf("nft does not list %q in\n%s", want, listed)
		}
	}
	ids := command(t, "ip", "netns", "exec", ns, "nft", "list", "table", "inet", "manx2")
	if id := (Rule{Verdict: verdict(Accept)}).ID(); !strings.Contains(ids, `comment "#`+id+`"`) {
		t.Errorf("nft does not list the ID %s in\n%s", id, ids)
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A rule is one line for any names and comments, which cannot inject a rule into the table.
func FuzzText(f *testing.F) {
	f.Add("leaf", "comment", "h4/x", "cali1", uint32(3), "10.0.0.0/8")
	f.Add("a\n}", "x\" drop\n", "\x00", "\u202e", uint32(255), "::/0")
	f.Add("", "", "", "", uint32(0), "")
	f.Fuzz(func(t *testing.T, chain, comment, set, iface string, n uint32, prefix string) {
		net, _ := netip.ParsePrefix(prefix)
		table := NewTable()
		table.AddSet(Set{Name: set, Type: SetType(n % 7), Comment: comment})
		table.AddElement(set, Element{Prefix: net, Protocol: uint8(n), Low: uint16(n)})
		table.AddMap(Map{Name: set, Comment: comment})
		table.SetVerdict(set, iface, Verdict{Action: Action(n%13 + 1), Chain: chain, Map: set})
		r := Rule{Matches: []Match{{Field: Field(n % 20), Name: iface, Prefix: net, Set: set, Low: n, Mask: n}},
			Log:     Log{Kernel: comment, Group: uint16(n), Prefix: comment},
			Verdict: Verdict{Action: Action(n % 13), Chain: chain, Map: set}, Comment: comment}
		table.SetChain(&Chain{Name: chain, Rules: []Rule{r, r}})
		var b bytes.Buffer
		if err := table.Text(&b, TextOptions{}); err != nil {
			t.Fatal(err)
		}
		_, elements, _ := table.Set(set)
		want := 17 + elements
		if SetType(n%7) == Ports {
			want++ // flags
		}
		if SetType(n%7) > Endpoints6 {
			want-- // no type
		}
		if got := strings.Count(b.String(), "\n"); got != want {
			t.Errorf("%d lines, want %d:\n%s", got, want, &b)
		}
		for _, c := range b.String() {
			if c < ' ' && c != '\n' && c != '\t' {
				t.Errorf("control character %q in\n%s", c, &b)
			}
		}
	})
}
