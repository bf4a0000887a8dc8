package nftables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
)

func sprint(v any) string { return fmt.Sprintf("%+v", v) }

// ruleText is one rule and how nft prints it.
type ruleText struct {
	name string
	rule ruleset.Rule
	text string
}

func matching(m ...ruleset.Match) ruleset.Rule { return ruleset.Rule{Matches: m} }

func verdictRule(v ruleset.Verdict) ruleset.Rule { return ruleset.Rule{Verdict: v} }

var (
	ipv4 = ruleset.Match{Field: ruleset.Family, Low: 4}
	ipv6 = ruleset.Match{Field: ruleset.Family, Low: 6}
	tcp  = ruleset.Match{Field: ruleset.Protocol, Low: 6}
	udp  = ruleset.Match{Field: ruleset.Protocol, Low: 17}
	icmp = ruleset.Match{Field: ruleset.Protocol, Low: 1}
)

var ruleTexts = []ruleText{
	{"family", matching(ipv4), "meta nfproto ipv4"},
	{"not a family", matching(ruleset.Match{Field: ruleset.Family, Not: true, Low: 4}), "meta nfproto != ipv4"},
	{"interface", matching(ruleset.Match{Field: ruleset.InInterface, Name: "eth0"}), `iifname "eth0"`},
	{"not an interface", matching(ruleset.Match{Field: ruleset.OutInterface, Not: true, Name: "eth0"}),
		`oifname != "eth0"`},
	{"interfaces", matching(ruleset.Match{Field: ruleset.InInterface, Name: "cali*"}), `iifname "cali*"`},
	{"no such interfaces", matching(ruleset.Match{Field: ruleset.OutInterface, Not: true, Name: "cali*"}),
		`oifname != "cali*"`},
	{"any interface", matching(ruleset.Match{Field: ruleset.OutInterface, Name: "*"}), ""},
	{"no interface at all", matching(ruleset.Match{Field: ruleset.OutInterface, Not: true, Name: "*"}),
		"meta nfproto 0"},
	{"protocol", matching(tcp), "meta l4proto tcp"},
	{"segment size", ruleset.Rule{Matches: []ruleset.Match{tcp}, ClampMSS: true},
		"tcp flags syn / syn,rst tcp option maxseg size set rt mtu"},
	{"not a protocol", matching(ruleset.Match{Field: ruleset.Protocol, Not: true, Low: 17}), "meta l4proto != udp"},
	{"source address", matching(ipv4, ruleset.Match{Field: ruleset.Source, Prefix: prefix("10.0.0.1/32")}),
		"ip saddr 10.0.0.1"},
	{"not the destination", matching(ipv4, ruleset.Match{Field: ruleset.Destination, Not: true,
		Prefix: prefix("10.0.0.1/32")}), "ip daddr != 10.0.0.1"},
	{"network of bytes", matching(ipv4, ruleset.Match{Field: ruleset.Destination, Prefix: prefix("10.1.0.0/16")}),
		"ip daddr 10.1.0.0/16"},
	{"network of bits", matching(ipv4, ruleset.Match{Field: ruleset.Source, Not: true, Prefix: prefix("10.1.64.0/19")}),
		"ip saddr != 10.1.64.0/19"},
	{"all addresses", matching(ipv4, ruleset.Match{Field: ruleset.Source, Prefix: prefix("0.0.0.0/0")}),
		"meta nfproto ipv4"},
	{"no address", matching(ipv4, ruleset.Match{Field: ruleset.Source, Not: true, Prefix: prefix("0.0.0.0/0")}),
		"meta nfproto ipv4 meta nfproto 0"},
	{"address without a family", matching(ruleset.Match{Field: ruleset.Source, Prefix: prefix("10.0.0.0/8")}),
		"ip saddr 10.0.0.0/8"},
	{"IPv6 address", matching(ipv6, ruleset.Match{Field: ruleset.Destination, Prefix: prefix("fd00::1/128")}),
		"ip6 daddr fd00::1"},
	{"IPv6 network", matching(ipv6, ruleset.Match{Field: ruleset.Source, Prefix: prefix("fd00:1:2:8000::/49")}),
		"ip6 saddr fd00:1:2:8000::/49"},
	{"set", matching(ipv4, ruleset.Match{Field: ruleset.Source, Set: "h4/a"}), "ip saddr @h4/a"},
	{"not in a set", matching(ipv4, ruleset.Match{Field: ruleset.Destination, Not: true, Set: "n4/a"}),
		"ip daddr != @n4/a"},
	{"IPv6 set", matching(ipv6, ruleset.Match{Field: ruleset.Source, Set: "n6/a"}), "ip6 saddr @n6/a"},
	{"port", matching(tcp, ruleset.Match{Field: ruleset.DestinationPort, Low: 80}), "tcp dport 80"},
	{"not a port", matching(tcp, ruleset.Match{Field: ruleset.SourcePort, Not: true, Low: 80}), "tcp sport != 80"},
	{"ports", matching(tcp, ruleset.Match{Field: ruleset.DestinationPort, Low: 80, High: 90}), "tcp dport 80-90"},
	{"not these ports", matching(tcp, ruleset.Match{Field: ruleset.DestinationPort, Not: true, Low: 80, High: 90}),
		"tcp dport != 80-90"},
	{"set of ports", matching(tcp, ruleset.Match{Field: ruleset.DestinationPort, Set: "p/a"}), "tcp dport @p/a"},
	{"none of a set of ports", matching(tcp, ruleset.Match{Field: ruleset.SourcePort, Not: true, Set: "p/a"}),
		"tcp sport != @p/a"},
	{"endpoint", matching(ipv4, ruleset.Match{Field: ruleset.DestinationEndpoint, Set: "e4/a"}),
		"ip daddr . meta l4proto . th dport @e4/a"},
	{"not an endpoint", matching(ipv4, ruleset.Match{Field: ruleset.DestinationEndpoint, Not: true, Set: "e4/a"}),
		"ip daddr . meta l4proto . th dport != @e4/a"},
	{"source endpoint", matching(ipv6, ruleset.Match{Field: ruleset.SourceEndpoint, Set: "e6/a"}),
		"ip6 saddr . meta l4proto . th sport @e6/a"},
	{"type of ICMP", matching(icmp, ruleset.Match{Field: ruleset.ICMP, Low: 8 << 8, Mask: 0xff00}),
		"icmp type echo-request"},
	{"type and code of ICMP", matching(icmp, ruleset.Match{Field: ruleset.ICMP, Low: 3<<8 | 4, Mask: 0xffff}),
		"icmp type destination-unreachable icmp code frag-needed"},
	// nft inverts each half; the kernel compares both at once, as TestRulesAndPackets shows.
	{"not this type and code", matching(icmp, ruleset.Match{Field: ruleset.ICMP, Not: true, Low: 3<<8 | 4,
		Mask: 0xffff}), "icmp type != destination-unreachable icmp code != frag-needed"},
	{"state of the connection",
		matching(ruleset.Match{Field: ruleset.ConnState, Mask: ruleset.ConnEstablished | ruleset.ConnRelated}),
		"ct state established,related"},
	{"not this state", matching(ruleset.Match{Field: ruleset.ConnState, Not: true, Mask: ruleset.ConnInvalid}),
		"ct state ! invalid"},
	{"status of the connection", matching(ruleset.Match{Field: ruleset.ConnStatus, Mask: ruleset.ConnDNAT}),
		"ct status dnat"},
	{"not this status", matching(ruleset.Match{Field: ruleset.ConnStatus, Not: true, Mask: ruleset.ConnDNAT}),
		"ct status ! dnat"},
	{"mark", matching(ruleset.Match{Field: ruleset.PacketMark, Low: 0x20000, Mask: 0x20000}),
		"meta mark & 0x00020000 == 0x00020000"},
	{"not this mark", matching(ruleset.Match{Field: ruleset.PacketMark, Not: true, Low: 0x20000, Mask: ^uint32(0)}),
		"meta mark != 0x00020000"},
	{"no route back", matching(ruleset.Match{Field: ruleset.NoReturnRoute}), "fib saddr . mark . iif oif 0"},
	{"a route back", matching(ruleset.Match{Field: ruleset.NoReturnRoute, Not: true}),
		"fib saddr . mark . iif oif != 0"},
	{"from this host", matching(ruleset.Match{Field: ruleset.SourceLocal}), "fib saddr type local"},
	{"to this host", matching(ruleset.Match{Field: ruleset.DestinationLocal}), "fib daddr type local"},
	{"not to this host", matching(ruleset.Match{Field: ruleset.DestinationLocal, Not: true}),
		"fib daddr type != local"},
	{"address of the outgoing interface", matching(ruleset.Match{Field: ruleset.SourceOfOutInterface}),
		"fib saddr . oif type local"},
	{"client of the connection", matching(ruleset.Match{Field: ruleset.ConnSource, Prefix: prefix("10.0.0.1/32")}),
		"ct original ip saddr 10.0.0.1"},
	{"not the server", matching(ruleset.Match{Field: ruleset.ConnReplySource, Not: true,
		Prefix: prefix("fd00::1/128")}), "ct reply ip6 saddr != fd00::1"},
	{"route to the source", matching(ruleset.Match{Field: ruleset.SourceRoute, Name: "cali*"}),
		`fib saddr oifname "cali*"`},
	{"hop limit", matching(ipv6, ruleset.Match{Field: ruleset.HopLimit, Low: 255}), "ip6 hoplimit 255"},
	{"not this TTL", matching(ipv4, ruleset.Match{Field: ruleset.HopLimit, Not: true, Low: 1}), "ip ttl != 1"},
	{"fragment", matching(ipv4, ruleset.Match{Field: ruleset.Fragment}), "ip frag-off & 16383 != 0"},
	{"no fragment", matching(ipv4, ruleset.Match{Field: ruleset.Fragment, Not: true}), "ip frag-off & 16383 == 0"},
	{"fragment of IPv6", matching(ipv6, ruleset.Match{Field: ruleset.Fragment}), "exthdr frag exists"},
	{"no fragment of IPv6", matching(ipv6, ruleset.Match{Field: ruleset.Fragment, Not: true}),
		"exthdr frag missing"},
	{"VNI", matching(udp, ruleset.Match{Field: ruleset.VNI, Low: 4096}), "meta l4proto udp @th,96,24 0x1000"},
	{"not this VNI", matching(udp, ruleset.Match{Field: ruleset.DestinationPort, Low: 4789},
		ruleset.Match{Field: ruleset.VNI, Not: true, Low: 1<<24 - 1}), "udp dport 4789 @th,96,24 != 0xffffff"},

	{"limit of packets", ruleset.Rule{Over: ruleset.Limit{Packets: 100, Burst: 20}, Verdict: ruleset.Verdict{
		Action: ruleset.Drop}}, "limit rate over 100/second burst 20 packets drop"},
	{"limit of bytes", ruleset.Rule{Over: ruleset.Limit{Bytes: 4097}, Verdict: ruleset.Verdict{
		Action: ruleset.Drop}}, "limit rate over 4097 bytes/second burst 4097 bytes drop"},
	{"limit of connections", ruleset.Rule{Over: ruleset.Limit{Connections: 10}, Verdict: ruleset.Verdict{
		Action: ruleset.RejectTCP}}, "ct count over 10 reject with tcp reset"},
	{"counter", ruleset.Rule{Counter: true}, "counter packets 0 bytes 0"},
	{"shared counter", ruleset.Rule{CountedBy: "dropped-policy", Verdict: ruleset.Verdict{Action: ruleset.Drop}},
		`counter name "dropped-policy" drop`},
	{"log", ruleset.Rule{Log: ruleset.Log{Group: 2, Prefix: "calico-packet: "}},
		`log prefix "calico-packet: " group 2 snaplen 128`},
	{"some in the log", ruleset.Rule{Log: ruleset.Log{Kernel: "calico-packet: ", Rate: 5, Burst: 10}},
		`limit rate 5/second burst 10 packets log prefix "calico-packet: "`},
	{"bit of the mark", ruleset.Rule{Mark: ruleset.Mark{Value: 0x20000, Mask: 0x20000}},
		"meta mark set meta mark | 0x00020000"},
	{"no bit of the mark", ruleset.Rule{Mark: ruleset.Mark{Mask: 0x20000}}, "meta mark set meta mark & 0xfffdffff"},
	{"whole mark", ruleset.Rule{Mark: ruleset.Mark{Value: 5, Mask: ^uint32(0)}}, "meta mark set 0x00000005"},
	{"no tracking", ruleset.Rule{NoTrack: true, Verdict: ruleset.Verdict{Action: ruleset.Accept}}, "notrack accept"},
	{"reject", verdictRule(ruleset.Verdict{Action: ruleset.Reject}), "reject"},
	{"return", verdictRule(ruleset.Verdict{Action: ruleset.Return}), "return"},
	{"jump", verdictRule(ruleset.Verdict{Action: ruleset.Jump, Chain: "in/x"}), "jump in/x"},
	{"goto", verdictRule(ruleset.Verdict{Action: ruleset.Goto, Chain: "in/x"}), "goto in/x"},
	{"lookup", verdictRule(ruleset.Verdict{Action: ruleset.Lookup, Map: "to-workload"}), "iifname vmap @to-workload"},
	{"lookup of the way out", verdictRule(ruleset.Verdict{Action: ruleset.Lookup, Map: "to-workload", Out: true}),
		"oifname vmap @to-workload"},
	{"few in the log", ruleset.Rule{Log: ruleset.Log{Kernel: "p", Rate: 5, Burst: 10, Per: ruleset.PerHour}},
		`limit rate 5/hour burst 10 packets log prefix "p"`},
	{"in both logs", ruleset.Rule{Log: ruleset.Log{Kernel: "k: ", Group: 2, Prefix: "p", Rate: 5, Burst: 10}},
		`limit rate 5/second burst 10 packets log prefix "k: " log prefix "p" group 2 snaplen 128`},
	{"nothing at all", ruleset.Rule{Log: ruleset.Log{Rate: 5}}, ""},
	{"everything in order", ruleset.Rule{Matches: []ruleset.Match{tcp}, Counter: true,
		Log:  ruleset.Log{Group: 1, Prefix: "a"},
		Mark: ruleset.Mark{Value: 1, Mask: 1}, Verdict: ruleset.Verdict{Action: ruleset.Drop},
		Comment: "NetworkPolicy/default/web ingress 1"},
		`meta l4proto tcp counter packets 0 bytes 0 log prefix "a" group 1 snaplen 128 meta mark set meta mark | 0x00000001 drop`},
}

var natTexts = []ruleText{
	{"masquerade", verdictRule(ruleset.Verdict{Action: ruleset.Masquerade}), "masquerade"},
	{"masquerade at random", verdictRule(ruleset.Verdict{Action: ruleset.Masquerade, Random: true}),
		"masquerade fully-random"},
	{"masquerade to ports at random", ruleset.Rule{Matches: []ruleset.Match{tcp}, Verdict: ruleset.Verdict{
		Action: ruleset.Masquerade, Low: 4790, High: 65535, Random: true}},
		"meta l4proto tcp masquerade to :4790-65535 fully-random"},
	{"snat", ruleset.Rule{Matches: []ruleset.Match{ipv4}, Verdict: ruleset.Verdict{
		Action: ruleset.SNAT, Address: addr("10.0.0.1")}}, "meta nfproto ipv4 snat ip to 10.0.0.1"},
	{"the source stays", verdictRule(ruleset.Verdict{Action: ruleset.KeepSource, Address: addr("10.0.0.1")}),
		"snat ip to ip saddr"},
	{"the source of IPv6 stays", verdictRule(ruleset.Verdict{Action: ruleset.KeepSource, Address: addr("::")}),
		"snat ip6 to ip6 saddr"},
	{"snat to ports", ruleset.Rule{Matches: []ruleset.Match{ipv6, tcp}, Verdict: ruleset.Verdict{
		Action: ruleset.SNAT, Address: addr("fd00::1"), Low: 1000, High: 2000, Random: true}},
		"meta nfproto ipv6 meta l4proto tcp snat ip6 to [fd00::1]:1000-2000 fully-random"},
}

var dnatTexts = []ruleText{
	{"dnat", verdictRule(ruleset.Verdict{Action: ruleset.DNAT, Address: addr("10.0.0.1")}),
		"meta nfproto ipv4 dnat ip to 10.0.0.1"},
}

// textTable has a chain for each list of rules, and the objects that they name.
func textTable() *ruleset.Table {
	w := ruleset.NewTable()
	w.SetChain(&ruleset.Chain{Name: "in/x"})
	w.AddMap(ruleset.Map{Name: "to-workload"})
	w.AddSet(ruleset.Set{Name: "h4/a", Type: ruleset.Addresses4})
	w.AddSet(ruleset.Set{Name: "n4/a", Type: ruleset.Addresses4, Interval: true})
	w.AddSet(ruleset.Set{Name: "n6/a", Type: ruleset.Addresses6, Interval: true})
	w.AddSet(ruleset.Set{Name: "p/a", Type: ruleset.Ports, Interval: true})
	w.AddSet(ruleset.Set{Name: "e4/a", Type: ruleset.Endpoints4})
	w.AddSet(ruleset.Set{Name: "e6/a", Type: ruleset.Endpoints6})
	rules := func(list []ruleText) (all []ruleset.Rule) {
		for _, r := range list {
			all = append(all, r.rule)
		}
		return all
	}
	w.SetChain(&ruleset.Chain{Name: "text", Rules: rules(ruleTexts)})
	w.SetChain(&ruleset.Chain{Name: "nat", Base: &ruleset.Base{Hook: ruleset.Postrouting, Type: ruleset.NAT,
		Priority: 110}, Rules: rules(natTexts)})
	w.SetChain(&ruleset.Chain{Name: "in-nat", Base: &ruleset.Base{Hook: ruleset.Prerouting, Type: ruleset.NAT,
		Priority: -110}, Rules: rules(dnatTexts)})
	return w
}

// The text of each kind of rule is nft's, and nft reads it again.
func TestRulesAsNftPrintsThem(t *testing.T) {
	ns, n := rulesNS(t)
	w := textTable()
	commitRules(t, n, w.TakeChanges())
	sameRules(t, n, w)
	for chain, list := range map[string][]ruleText{"text": ruleTexts, "nat": natTexts, "in-nat": dnatTexts} {
		lines := ruleLines(nft(t, ns, "list", "chain", "inet", "manx", chain))
		if len(lines) != len(list) {
			t.Fatalf("chain %s has %d rules instead of %d:\n%s", chain, len(lines), len(list),
				strings.Join(lines, "\n"))
		}
		for i, r := range list {
			want := strings.TrimSpace(r.text + ` comment "` + ruleComment(r.rule.Comment, r.rule.ID()) + `"`)
			if lines[i] != want {
				t.Errorf("%s:\n got %s\nwant %s", r.name, lines[i], want)
			}
		}
	}
}

// ruleLines returns the rules of a chain as nft prints them.
func ruleLines(s string) (rules []string) {
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasSuffix(line, "{") && line != "}" && !strings.HasPrefix(line, "type ") {
			rules = append(rules, line)
		}
	}
	return rules
}
