package hostfirewall

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// forward returns a table with a chain FORWARD.
func forward(drop bool, rules ...Rule) *Table {
	for i := range rules {
		rules[i].Number, rules[i].Handle = i+1, uint64(i+10)
	}
	return &Table{Family: "ip", Name: "filter", Chains: map[string]*Chain{"FORWARD": {Name: "FORWARD", Rules: rules,
		Base: &Base{Hook: "forward", Drop: drop}}}}
}

func iface(f Field, name string) Match { return Match{Field: f, Values: []Value{{Text: name}}} }
func begins(f Field, name string) Match {
	return Match{Field: f, Values: []Value{{Text: name, Begins: true}}}
}

var node = Host{
	Workloads: []Workload{{"cali1", []netip.Addr{addr("10.244.1.1"), addr("fd00::1:1")}},
		{"cali2", []netip.Addr{addr("10.244.1.2")}}},
	Uplinks: []string{"eth0"}, Pools: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00::/48")},
	Local: []LocalPackets{{"BGP from 10.0.0.1", Packet{In: Interface{Name: "eth0"}, Source: prefix("10.0.0.1/32"),
		Destination: prefix("0.0.0.0/0"), Protocol: protocolTCP, DestinationPort: 179}},
		{"VXLAN from other nodes", Packet{In: Interface{Name: "eth0"}, Source: prefix("10.0.0.1/32"),
			Destination: prefix("0.0.0.0/0"), Protocol: protocolUDP, DestinationPort: 4789, State: StateUntracked}}},
}

const (
	toOthers   = "of workloads, to other nodes through eth0"
	fromOthers = "of workloads, from other nodes through eth0"
	here       = "of workloads, to other workloads of this node"
)

func TestFindings(t *testing.T) {
	input := forward(true)
	input.Chains["INPUT"] = input.Chains["FORWARD"]
	input.Chains["INPUT"].Base.Hook = "input"
	port := Match{Field: DestinationPort, Values: []Value{{Low: 179, High: 179}, {Low: 4789, High: 4789}}}
	inputWithPort := forward(true, Rule{Matches: []Match{port}, Verdict: Accept})
	inputWithPort.Chains["FORWARD"].Base.Hook = "input"
	newAlone := forward(true, Rule{Matches: []Match{{Field: State, Mask: StateNew, Not: true,
		Values: []Value{{}}}}, Verdict: Accept})
	newAlone.Chains["FORWARD"].Base.Hook = "input"
	six := forward(true)
	six.Family = "ip6"
	for _, c := range []struct {
		name  string
		table *Table
		want  string // the packets of the one finding; empty: none
	}{
		{"accepts all", forward(false), ""},
		{"drops all", forward(true), strings.Join([]string{toOthers, fromOthers, here}, "; ")},
		{"the remedy", forward(true, Rule{Matches: []Match{begins(InName, "cali")}, Verdict: Accept},
			Rule{Matches: []Match{begins(OutName, "cali")}, Verdict: Accept}), ""},
		{"half of it", forward(true, Rule{Matches: []Match{begins(InName, "cali")}, Verdict: Accept}), fromOthers},
		{"one workload of two is not known", forward(false,
			Rule{Matches: []Match{iface(InName, "cali1")}, Verdict: Accept},
			Rule{Matches: []Match{begins(InName, "cali")}, Verdict: Drop}),
			"of cali2, to other nodes through eth0; of cali2, to other workloads of this node"},
		{"addresses of the pool", forward(true, Rule{Matches: []Match{
			{Field: Source, Values: []Value{{From: addr("10.244.0.0"), To: addr("10.244.255.255")}}},
			{Field: Destination, Values: []Value{{From: addr("10.0.0.0"), To: addr("10.255.255.255")}}}},
			Verdict: Accept}), ""},
		{"a drop of some has a purpose", forward(false, Rule{Matches: []Match{
			{Field: Source, Values: []Value{{From: addr("10.244.7.0"), To: addr("10.244.7.255")}}}}, Verdict: Drop},
			Rule{Unread: []string{"match set"}, Verdict: Drop}), ""},
		{"an unreadable condition about a protocol", forward(true, Rule{Verdict: Accept, Unread: []string{"match icmp"},
			Matches: []Match{{Field: Protocol, Values: []Value{{Low: 1, High: 1}}}}}),
			strings.Join([]string{toOthers, fromOthers, here}, "; ")},
		{"IPv6 alone", six, "of cali1, to other nodes through eth0; of cali1, from other nodes through eth0"},
		{"what the node gets", input, "BGP from 10.0.0.1; VXLAN from other nodes"},
		{"the ports are open", inputWithPort, ""},
		{"for new connections alone", newAlone, "VXLAN from other nodes"},
	} {
		var got []string
		for _, f := range Find([]*Table{c.table}, node) {
			if !f.Certain {
				t.Errorf("%s: %s", c.name, f)
			}
			got = append(got, strings.Join(f.Packets, "; "))
		}
		if strings.Join(got, " | ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestTextOfAFinding(t *testing.T) {
	table := forward(true, Rule{Matches: []Match{{Field: Protocol, Values: []Value{{Low: 6, High: 6}}}},
		Comment: "web", Verdict: Accept}, Rule{Unread: []string{"match set"}, Verdict: Accept})
	f := Find([]*Table{table}, node)[0]
	want := "may drop packets that policy allows: of workloads, to other nodes through eth0; of workloads, from " +
		"other nodes through eth0; of workloads, to other workloads of this node (hook forward, policy drop); " +
		"before it, these rules accept some of them, or may do so: rule 1 of chain FORWARD, handle 10, \"web\"; " +
		"rule 2 of chain FORWARD, handle 11, with conditions that manxd cannot read: \"match set\""
	if f.String() != want || f.Subject() != "table ip filter, chain FORWARD" {
		t.Errorf("%s: %s", f.Subject(), f)
	}
}

// Names and comments are other programs' text: a terminal that shows a notice must not obey them, and a reader not take
// them for Manx's words.
func TestNamesOfOthersAreQuoted(t *testing.T) {
	const evil = "x\x1b[2J\nHealth: ok"
	table := &Table{Family: "ip", Name: evil, Chains: map[string]*Chain{evil: {Name: evil, Base: &Base{Hook: "forward"},
		Rules: []Rule{{Unread: []string{evil}, Comment: evil, Verdict: Accept}, {Comment: strings.Repeat(evil, 999),
			Verdict: Drop}}}}}
	f := Find([]*Table{table}, node)[0]
	for _, text := range []string{f.Subject(), f.String(), fmt.Sprint(f.Dropped)} {
		if strings.ContainsAny(text, "\x1b\n") || len(text) > 1500 {
			t.Errorf("%q", text)
		}
	}
	for name, want := range map[string]string{"FORWARD": "FORWARD", "cali-fw-cali1/x": "cali-fw-cali1/x", "": `""`,
		"a b": `"a b"`, "é": `"\u00e9"`, strings.Repeat("a", 200): strings.Repeat("a", 80) + "..."} {
		if got := quote(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

// Tables of any shape end: jumps in a circle, which the kernel refuses, and more rules than are evaluated.
func TestEvaluationIsBounded(t *testing.T) {
	circle := forward(true, Rule{Verdict: Jump, Target: "a"})
	circle.Chains["a"] = &Chain{Name: "a", Rules: []Rule{{Verdict: Jump, Target: "a"}}}
	wide := forward(true, make([]Rule, mostSteps+1)...)
	missing := forward(true, Rule{Verdict: Jump, Target: "b"})
	deep := forward(true, Rule{Verdict: Goto, Target: "c0"})
	for i := range 12 { // each chain jumps twice to the next one
		deep.Chains[fmt.Sprint("c", i)] = &Chain{Name: "c", Rules: []Rule{{Verdict: Jump, Target: fmt.Sprint("c", i+1)},
			{Verdict: Jump, Target: fmt.Sprint("c", i+1)}}}
	}
	deep.Chains["c12"] = &Chain{Name: "c12", Rules: make([]Rule, 10)}
	for name, table := range map[string]*Table{"circle": circle, "wide": wide, "missing": missing, "deep": deep} {
		dropped, mayDrop := Judge([]*Table{table}, Packet{In: Interface{Name: "a"}, Out: Interface{Name: "b"},
			Source: prefix("10.0.0.0/8"), Destination: prefix("10.0.0.0/8"), State: StateNew})
		if len(dropped) > 0 || len(mayDrop) != 1 || !strings.Contains(mayDrop[0], "cannot be evaluated") {
			t.Errorf("%s: %+v, %q", name, dropped, mayDrop)
		}
	}
}
