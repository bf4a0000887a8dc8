package ruleset

import (
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

func output(name string, priority int32, rules ...Rule) *Chain {
	return &Chain{Name: name, Base: &Base{Hook: Output, Type: Filter, Priority: priority}, Rules: rules}
}

func nat(name string, hook Hook, priority int32, rules ...Rule) *Chain {
	return &Chain{Name: name, Base: &Base{Hook: hook, Type: NAT, Priority: priority}, Rules: rules}
}

func chain(name string, rules ...Rule) *Chain { return &Chain{Name: name, Rules: rules} }

func do(v Verdict, m ...Match) Rule  { return Rule{Matches: m, Verdict: v} }
func act(a Action, m ...Match) Rule  { return do(verdict(a), m...) }
func jump(to string) Rule            { return do(Verdict{Action: Jump, Chain: to}) }
func gotoChain(to string) Rule       { return do(Verdict{Action: Goto, Chain: to}) }
func mark(n uint32, m ...Match) Rule { return Rule{Mark: Mark{n, n}, Matches: m} }
func dnat(to string, m ...Match) Rule {
	return do(Verdict{Action: DNAT, Address: netip.MustParseAddr(to)}, append([]Match{ipv4}, m...)...)
}
func net4(f Field, p string) Match     { return Match{Field: f, Prefix: netip.MustParsePrefix(p)} }
func not(m Match) Match                { m.Not = true; return m }
func inSet(f Field, name string) Match { return Match{Field: f, Set: name} }

var byOut = do(Verdict{Action: Lookup, Map: "m", Out: true})

// The packet of these cases is a UDP packet of this host, from 192.0.2.1 to port 7 of 192.0.2.2 through dum0, the first
// one of its connection.
type outputCase struct {
	name   string
	chains []*Chain
	entry  Verdict // of map m for dum0
	// The expected result: dropped, or accepted with this mark, destination and source ("" for the same as before).
	dropped             bool
	mark                uint32
	destination, source string
}

func outputCases() []outputCase {
	toE := Verdict{Action: Goto, Chain: "e"}
	callE := Verdict{Action: Jump, Chain: "e"}
	state := func(mask uint32) Match { return Match{Field: ConnState, Mask: mask} }
	dnatted := Match{Field: ConnStatus, Mask: ConnDNAT}
	postrouting := func(priority int32, rules ...Rule) *Chain {
		return &Chain{Name: "post", Base: &Base{Hook: Postrouting, Type: Filter, Priority: priority}, Rules: rules}
	}
	return []outputCase{
		{name: "accept ends only its base chain", chains: []*Chain{output("a", 0, act(Accept)),
			output("b", 1, act(Drop))}, dropped: true},
		{name: "drop ends everything", chains: []*Chain{output("a", 0, act(Drop)), output("b", 1, act(Accept))},
			dropped: true},
		{name: "reject ends everything", chains: []*Chain{output("a", 0, act(Reject)), output("b", 1, act(Accept))},
			dropped: true},
		{name: "the end of a base chain accepts", chains: []*Chain{output("a", 0, mark(1))}, mark: 1},
		{name: "base chains are evaluated in order of priority",
			chains: []*Chain{output("z", -5, mark(1)),
				output("a", 5, act(Drop, Match{Field: PacketMark, Low: 1, Mask: 1}))}, dropped: true},
		{name: "return in a base chain accepts", chains: []*Chain{output("a", 0, act(Return), act(Drop))}},
		{name: "the end of a chain comes back to after the jump", chains: []*Chain{output("a", 0, jump("b"), mark(1)),
			chain("b", mark(2))}, mark: 3},
		{name: "return comes back to after the jump", chains: []*Chain{output("a", 0, jump("b"), mark(1)),
			chain("b", act(Return), act(Drop))}, mark: 1},
		{name: "goto does not come back", chains: []*Chain{output("a", 0, gotoChain("b"), act(Drop)),
			chain("b", mark(1))}, mark: 1},
		{name: "return after goto comes back to the last jump", mark: 3,
			chains: []*Chain{output("a", 0, jump("b"), mark(1)), chain("b", gotoChain("c"), act(Drop)),
				chain("c", mark(2), act(Return), act(Drop))}},
		{name: "return after two gotos comes back to the last jump", mark: 1,
			chains: []*Chain{output("a", 0, jump("b"), mark(1)), chain("b", gotoChain("c"), act(Drop)),
				chain("c", gotoChain("d"), act(Drop)), chain("d")}},
		{name: "jump after goto comes back into the chain that was gone to", mark: 7,
			chains: []*Chain{output("a", 0, jump("b"), mark(1)), chain("b", gotoChain("c"), act(Drop)),
				chain("c", jump("d"), mark(2)), chain("d", mark(4))}},
		{name: "accept in a chain ends the base chain", chains: []*Chain{output("a", 0, jump("b"), act(Drop)),
			chain("b", act(Accept))}},
		{name: "accept in a chain does not end other base chains",
			chains: []*Chain{output("a", 0, jump("b"), act(Drop)), chain("b", act(Accept)), output("c", 1, mark(1))},
			mark:   1},
		{name: "trap: return after goto from a map in the base chain skips the rest",
			chains: []*Chain{output("a", 0, byOut, act(Drop)), chain("e", act(Return))}, entry: toE},
		{name: "trap: return after jump from the map falls onto the drop for misses", dropped: true,
			chains: []*Chain{output("a", 0, jump("d"), mark(1)), chain("d", byOut, act(Drop)), chain("e", act(Return))},
			entry:  callE},
		{name: "goto from a map in a dispatch chain returns to the base chain", mark: 1,
			chains: []*Chain{output("a", 0, jump("d"), mark(1)), chain("d", byOut, act(Drop)), chain("e", act(Return))},
			entry:  toE},
		{name: "an unknown interface is dropped", chains: []*Chain{output("a", 0, jump("d"), mark(1)),
			chain("d", byOut, act(Drop))}, dropped: true},
		{name: "a map without entry goes on", chains: []*Chain{output("a", 0, byOut, mark(1))}, mark: 1},
		{name: "a map's jump comes back", chains: []*Chain{output("a", 0, byOut, mark(1)), chain("e", mark(2))},
			entry: callE, mark: 3},
		{name: "the mark is set before the verdict",
			chains: []*Chain{output("a", 0, Rule{Mark: Mark{1, 1}, Verdict: verdict(Return)})}, mark: 1},
		{name: "a mark leaves the other bits", chains: []*Chain{
			output("a", 0, mark(0x30000), Rule{Mark: Mark{0, 0x20000}})}, mark: 0x10000},
		{name: "bits are set and cleared together",
			chains: []*Chain{output("a", 0, mark(0x50000), Rule{Mark: Mark{0x20000, 0x30000}})}, mark: 0x60000},
		{name: "pass: the next tier is evaluated only if the mark is set", mark: 4, chains: []*Chain{
			output("a", 0, jump("tiers")),
			chain("tiers", jump("pi/x"), Rule{Matches: []Match{{Field: PacketMark, Low: 2, Mask: 2}}, Mark: Mark{0, 2},
				Verdict: Verdict{Action: Goto, Chain: "tier2"}}, act(Drop)),
			chain("pi/x", Rule{Mark: Mark{2, 2}, Verdict: verdict(Return)}), chain("tier2", mark(4), act(Accept))}},
		{name: "a limit that is not exceeded does not match",
			chains: []*Chain{output("a", 0, Rule{Over: Limit{Packets: 1000, Burst: 5}, Verdict: verdict(Drop)})}},
		{name: "a connection limit that is not exceeded does not match",
			chains: []*Chain{output("a", 0, Rule{Over: Limit{Connections: 10}, Verdict: verdict(Drop)})}},
		{name: "log continues", chains: []*Chain{output("a", 0, Rule{Log: Log{Group: 5, Prefix: "x"}}, mark(1))},
			mark: 1},
		{name: "all matches must hold", chains: []*Chain{output("a", 0, act(Drop, udp, net4(Source, "10.0.0.0/8")))}},
		{name: "another family has no such address, nor not", mark: 1, chains: []*Chain{output("a", 0,
			act(Drop, ipv6, not(net4(Source, "fd00::/8"))), mark(1, ipv4, not(net4(Source, "10.0.0.0/8"))))}},

		{name: "the connection is new", chains: []*Chain{
			output("a", 0, mark(1, state(ConnNew)), act(Drop, not(state(ConnNew|ConnRelated))))}, mark: 1},
		{name: "before tracking the connection is invalid",
			chains: []*Chain{output("a", -300, mark(1, state(ConnInvalid)), act(Drop, state(ConnNew)))}, mark: 1},
		{name: "notrack makes it untracked", chains: []*Chain{
			output("a", -300, Rule{NoTrack: true}, mark(1, state(ConnUntracked))),
			output("b", 0, mark(2, state(ConnUntracked)))}, mark: 3},
		{name: "notrack after tracking is too late",
			chains: []*Chain{output("a", 0, Rule{NoTrack: true}, mark(1, state(ConnUntracked)))}},
		{name: "without connection there is no status, nor not",
			chains: []*Chain{output("a", -300, Rule{NoTrack: true}),
				output("b", 0, act(Drop, not(dnatted)), act(Drop, dnatted))}},
		{name: "without connection there is no translation", chains: []*Chain{output("a", -300, Rule{NoTrack: true}),
			nat("n", Output, -100, dnat("192.0.2.3"))}},

		{name: "translation comes before filters at 0 whatever its priority", mark: 1, destination: "192.0.2.3",
			chains: []*Chain{nat("n", Output, 110, dnat("192.0.2.3")),
				output("a", 0, mark(1, ipv4, net4(Destination, "192.0.2.3/32")))}},
		{name: "translation comes after filters at -150", destination: "192.0.2.3",
			chains: []*Chain{nat("n", Output, -190, dnat("192.0.2.3")),
				output("a", -150, mark(1, ipv4, net4(Destination, "192.0.2.3/32")))}},
		{name: "the first translation counts", destination: "192.0.2.3",
			chains: []*Chain{nat("z", Output, -100, dnat("192.0.2.3")), nat("a", Output, -90, dnat("192.0.2.4"))}},
		{name: "a NAT chain that accepts leaves it to the next", destination: "192.0.2.4",
			chains: []*Chain{nat("a", Output, -100, act(Accept), dnat("192.0.2.3")),
				nat("b", Output, -90, dnat("192.0.2.4"))}},
		{name: "a NAT chain can drop", chains: []*Chain{nat("a", Output, -100, act(Drop))}, dropped: true},
		{name: "a translated packet has the status", mark: 1, destination: "192.0.2.3",
			chains: []*Chain{nat("n", Output, -100, dnat("192.0.2.3")),
				output("a", 0, mark(1, dnatted), mark(2, not(dnatted)))}},
		{name: "translation to the same address is none", mark: 2,
			chains: []*Chain{nat("n", Output, -100, dnat("192.0.2.2")),
				output("a", 0, mark(1, dnatted), mark(2, not(dnatted)))}},
		{name: "the source is translated after postrouting filters at 0", mark: 2, source: "192.0.2.9",
			chains: []*Chain{
				nat("n", Postrouting, 0, do(Verdict{Action: SNAT, Address: netip.MustParseAddr("192.0.2.9")}, ipv4)),
				postrouting(0, mark(1, ipv4, net4(Source, "192.0.2.9/32")),
					mark(2, ipv4, net4(Source, "192.0.2.1/32")))}},
		{name: "a source that is kept stays", source: "192.0.2.1", chains: []*Chain{
			nat("a", Postrouting, -199, do(Verdict{Action: KeepSource, Address: netip.IPv4Unspecified()}, ipv4)),
			nat("b", Postrouting, 0, do(Verdict{Action: SNAT, Address: netip.MustParseAddr("192.0.2.9")}, ipv4))}},
		{name: "masquerade takes the interface's address", source: "192.0.2.1",
			chains: []*Chain{nat("n", Postrouting, 0, act(Masquerade))}},

		{name: "a packet of this host has no incoming interface", mark: 1,
			chains: []*Chain{output("a", 0, mark(1, not(Match{Field: InInterface, Name: "eth0"})),
				mark(2, Match{Field: InInterface, Name: "dum0"}))}},
		{name: "interface names", mark: 3, chains: []*Chain{
			output("a", 0, mark(1, Match{Field: OutInterface, Name: "dum*"}),
				mark(2, Match{Field: OutInterface, Name: "dum0"}),
				mark(4, Match{Field: OutInterface, Name: "dum"}),
				mark(8, not(Match{Field: OutInterface, Name: "du*"})))}},
		{name: "addresses in sets", mark: 1 | 2 | 8,
			chains: []*Chain{output("a", 0, mark(1, ipv4, inSet(Source, "h4")), mark(2, ipv4, inSet(Destination, "n4")),
				mark(4, ipv4, inSet(Destination, "h4")), mark(8, ipv4, not(inSet(Destination, "h4"))),
				mark(16, ipv4, not(inSet(Source, "n4"))))}},
		{name: "ports", mark: 1 | 2 | 8 | 16, chains: []*Chain{
			output("a", 0, mark(1, udp, Match{Field: DestinationPort, Low: 7}),
				mark(2, udp, Match{Field: DestinationPort, Low: 1, High: 7}),
				mark(4, udp, Match{Field: DestinationPort, Low: 8, High: 9}), mark(8, udp, inSet(DestinationPort, "p")),
				mark(16, udp, not(Match{Field: DestinationPort, Low: 9})),
				mark(32, tcp, Match{Field: DestinationPort, Low: 7}),
				mark(64, udp, not(inSet(DestinationPort, "p"))))}},
		{name: "endpoints", mark: 1 | 8, chains: []*Chain{
			output("a", 0, mark(1, ipv4, inSet(DestinationEndpoint, "e4")),
				mark(2, ipv4, not(inSet(DestinationEndpoint, "e4"))),
				mark(4, ipv4, inSet(SourceEndpoint, "e4")), mark(8, ipv4, not(inSet(SourceEndpoint, "e4"))))}},
		{name: "ICMP types are ICMP's alone", chains: []*Chain{
			output("a", 0, mark(1, Match{Field: Protocol, Low: protoICMP},
				not(Match{Field: ICMP, Low: 0x800, Mask: 0xff00})))}},
		{name: "local addresses", mark: 1 | 8, chains: []*Chain{
			output("a", 0, mark(1, match(SourceLocal)), mark(2, match(DestinationLocal)),
				mark(4, not(match(SourceLocal))), mark(8, not(match(DestinationLocal))))}},
		{name: "the source is an address of the outgoing interface", mark: 1,
			chains: []*Chain{postrouting(0, mark(1, match(SourceOfOutInterface)),
				mark(2, not(match(SourceOfOutInterface))))}},
	}
}

func (c outputCase) table() *Table {
	t := NewTable()
	for _, s := range []Set{{Name: "h4", Type: Addresses4}, {Name: "n4", Type: Addresses4, Interval: true},
		{Name: "p", Type: Ports, Interval: true}, {Name: "e4", Type: Endpoints4}} {
		t.AddSet(s)
	}
	t.AddElement("h4", element("192.0.2.1/32"))
	for _, n := range []string{"10.0.0.0/8", "192.0.2.0/31", "192.0.2.2/31", "192.0.2.8/29"} {
		t.AddElement("n4", element(n))
	}
	t.AddElement("p", Element{Low: 1, High: 3})
	t.AddElement("p", Element{Low: 5, High: 7})
	t.AddElement("p", Element{Low: 9, High: 9})
	t.AddElement("e4", Element{Prefix: netip.MustParsePrefix("192.0.2.2/32"), Protocol: protoUDP, Low: 7})
	t.AddMap(Map{Name: "m"})
	if c.entry != (Verdict{}) {
		t.SetVerdict("m", "dum0", c.entry)
	}
	for _, ch := range c.chains {
		t.SetChain(ch)
	}
	return t
}

var outputHost = Host{
	IsLocal: func(a netip.Addr) bool { return a == netip.MustParseAddr("192.0.2.1") },
	OwnsAddress: func(iface string, a netip.Addr) bool {
		return iface == "dum0" &&
			a == netip.MustParseAddr("192.0.2.1")
	},
	SourceFor: func(string, netip.Addr) netip.Addr { return netip.MustParseAddr("192.0.2.1") },
}

func outputPacket() Packet {
	return Packet{Out: "dum0", Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("192.0.2.2"),
		Protocol: protoUDP, SourcePort: 40000, DestinationPort: 7}
}

// want returns the expected outgoing packet.
func (c outputCase) want() Packet {
	p := outputPacket()
	p.Mark = c.mark
	if c.destination != "" {
		p.Destination = netip.MustParseAddr(c.destination)
	}
	if c.source != "" {
		p.Source = netip.MustParseAddr(c.source)
	}
	return p
}

func TestEval(t *testing.T) {
	for _, c := range outputCases() {
		t.Run(c.name, func(t *testing.T) {
			var trace Trace
			got := c.table().EvalOutput(&outputHost, outputPacket(), &trace)
			want := c.want()
			if got.Accepted() == c.dropped || got.Accepted() &&
				(got.Packet.Mark != want.Mark || got.Packet.Source != want.Source ||
					got.Packet.Destination != want.Destination) {
				t.Errorf("got %+v, want dropped %v, %+v\n%s", got, c.dropped, want, &trace)
			}
			if without := c.table().EvalOutput(&outputHost, outputPacket(), nil); without.Packet != got.Packet ||
				without.Action != got.Action {
				t.Errorf("without a trace: got %+v, want %+v", without, got)
			}
		})
	}
}

// The kernel agrees with the results that TestEval expects.
func TestKernelAgreesWithEval(t *testing.T) {
	namespace.Require(t, "nft", "bash")
	ns := namespace.Bare(t, "manxeval")
	command(t, "ip", "-n", ns, "link", "add", "dum0", "type", "veth", "peer", "name", "peer0")
	command(t, "ip", "-n", ns, "link", "set", "peer0", "up")
	command(t, "ip", "-n", ns, "addr", "add", "192.0.2.1/24", "dev", "dum0")
	command(t, "ip", "-n", ns, "link", "set", "dum0", "up")
	for n := 2; n <= 4; n++ {
		command(t, "ip", "-n", ns, "neigh", "add", fmt.Sprint("192.0.2.", n), "dev", "dum0", "lladdr",
			"02:00:00:00:00:01", "nud", "permanent")
	}
	// One table for each case, one after the other in one run of a shell: a packet, then the count of the last chain.
	var script strings.Builder
	dir := t.TempDir()
	cases := outputCases()
	for i, c := range cases {
		table, want := c.table(), c.want()
		table.SetChain(&Chain{Name: "last", Base: &Base{Hook: Postrouting, Type: Filter, Priority: 500}, Rules: []Rule{
			{Matches: []Match{udp}, Counter: true, Comment: "accepted"},
			{Matches: []Match{ipv4, udp, {Field: PacketMark, Low: want.Mark, Mask: 0xffffffff},
				net4(Source, want.Source.String()+"/32"), net4(Destination, want.Destination.String()+"/32")},
				Counter: true, Comment: "as wanted"},
			{Matches: []Match{{Field: ConnState, Mask: ConnNew}}}, // connections are tracked only if a rule requires it
		}})
		file, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Text(file, TextOptions{Name: "t"}); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&script, "nft -f %s || exit 0; (echo x >/dev/udp/192.0.2.2/7) 2>/dev/null; echo '== %d'; nft "+
			"list chain inet t last; nft delete table inet t\n", file.Name(), i)
	}
	shell := exec.Command("ip", "netns", "exec", ns, "bash")
	shell.Stdin = strings.NewReader(script.String())
	output, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	out := string(output)
	for i, c := range cases {
		_, part, ok := strings.Cut(out, fmt.Sprintf("== %d\n", i))
		if !ok {
			t.Fatalf("%s: nft did not take the table:\n%s", c.name, out[strings.LastIndex(out, "== "):])
		}
		part, _, _ = strings.Cut(part, "== ")
		seen := func(comment string) bool {
			for line := range strings.Lines(part) {
				if strings.Contains(line, comment) {
					return strings.Contains(line, "counter packets 1 ")
				}
			}
			t.Fatalf("%s: no rule %q in\n%s", c.name, comment, part)
			return false
		}
		if seen("accepted") == c.dropped || !c.dropped && !seen("as wanted") {
			t.Errorf("%s: want dropped %v, %+v, but the kernel has\n%s", c.name, c.dropped, c.want(), part)
		}
	}
}

func TestEvalHidesTheInterfacesThatAHookHasNot(t *testing.T) {
	in, out := mark(1, Match{Field: InInterface, Name: "in"}), mark(2, Match{Field: OutInterface, Name: "out"})
	for hook, want := range map[Hook]uint32{Prerouting: 1, Input: 1, Forward: 3, Output: 2, Postrouting: 3} {
		table := NewTable()
		table.SetChain(&Chain{Name: "x", Base: &Base{Hook: hook, Type: Filter}, Rules: []Rule{in, out}})
		p := outputPacket()
		p.In, p.Out = "in", "out"
		if got := table.Eval(nil, hook, p, nil).Packet.Mark; got != want {
			t.Errorf("%s: mark %d, want %d", hook, got, want)
		}
	}
}

func TestPathsAskTheirHooksInOrder(t *testing.T) {
	table := NewTable()
	for hook := Prerouting; hook <= Postrouting; hook++ {
		// Each hook appends its number to those of the earlier hooks.
		rules := []Rule{}
		for n := range 4 {
			shift := 3 * (3 - n)
			rules = append(rules, Rule{Matches: []Match{{Field: PacketMark, Mask: 7 << shift}},
				Mark: Mark{uint32(hook) << shift, 7 << shift}, Verdict: verdict(Accept)})
		}
		slices.Reverse(rules)
		table.SetChain(&Chain{Name: hook.String(), Base: &Base{Hook: hook, Type: Filter}, Rules: rules})
	}
	for name, test := range map[string]struct {
		eval func(*Host, Packet, *Trace) Result
		want uint32
	}{"forward": {table.EvalForward, 0o531}, "input": {table.EvalInput, 0o21}, "output": {table.EvalOutput, 0o54}} {
		if got := test.eval(nil, outputPacket(), nil).Packet.Mark; got != test.want {
			t.Errorf("%s: hooks %o, want %o (the first one last)", name, got, test.want)
		}
	}
}

func TestResultNamesTheRuleThatDropped(t *testing.T) {
	table := NewTable()
	drop := Rule{Verdict: verdict(Drop), Comment: "default deny"}
	table.SetChain(output("base", 0, jump("leaf")))
	table.SetChain(chain("leaf", mark(1), drop))
	got := table.EvalOutput(nil, outputPacket(), nil)
	if got.Hook != Output || got.Chain != "leaf" || got.Rule != 2 || got.By == nil || got.By.Comment != "default deny" {
		t.Errorf("got %+v", got)
	}
}

// The kernel refuses such tables; Eval must neither hang nor accept.
func TestEvalOfBrokenTablesDrops(t *testing.T) {
	deep := []*Chain{output("base", 0, jump("c0"))}
	for i := range 20 {
		deep = append(deep, chain(fmt.Sprint("c", i), jump(fmt.Sprint("c", i+1))))
	}
	deep = append(deep, chain("c20"))
	for name, chains := range map[string][]*Chain{
		"a loop of gotos": {output("base", 0, gotoChain("a")), chain("a", gotoChain("b")), chain("b", gotoChain("a"))},
		"a loop of jumps": {output("base", 0, jump("a")), chain("a", jump("a"))},
		"a missing chain": {output("base", 0, jump("a"))},
		"too deep":        deep,
	} {
		if got := (outputCase{chains: chains}).table().EvalOutput(nil, outputPacket(), nil); got.Action != Drop {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestReturnRoute(t *testing.T) {
	addr := netip.MustParseAddr
	host := Host{ReturnInterface: func(a netip.Addr) string {
		if a == addr("10.0.0.1") || a == addr("fd00::1") {
			return "cali1"
		}
		return ""
	}}
	tests := []struct {
		name   string
		packet Packet
		drop   bool
	}{
		{"the way back is the way in", Packet{In: "cali1", Source: addr("10.0.0.1"), Destination: addr("10.0.0.2")},
			false},
		{"the way back is another", Packet{In: "cali2", Source: addr("10.0.0.1"), Destination: addr("10.0.0.2")}, true},
		{"there is no way back", Packet{In: "cali1", Source: addr("10.0.0.9"), Destination: addr("10.0.0.2")}, true},
		{"IPv6", Packet{In: "cali2", Source: addr("fd00::1"), Destination: addr("fd00::2")}, true},
		{"loopback", Packet{In: "lo", Source: addr("10.0.0.9"), Destination: addr("10.0.0.2")}, false},
		{"DHCP before there is an address", Packet{In: "cali1", Source: addr("0.0.0.0"),
			Destination: addr("255.255.255.255")}, false},
		{"no address, but a destination", Packet{In: "cali1", Source: addr("0.0.0.0"), Destination: addr("10.0.0.2")},
			true},
		{"duplicate address detection", Packet{In: "cali1", Source: addr("::"), Destination: addr("ff02::1:ff00:1"),
			Protocol: protoICMPv6}, false},
		{"no IPv6 address, but a destination", Packet{In: "cali1", Source: addr("::"), Destination: addr("fd00::2"),
			Protocol: protoICMPv6}, true},
		{"link-local", Packet{In: "cali1", Source: addr("fe80::1"), Destination: addr("fe80::2")}, false},
	}
	table := NewTable()
	table.SetChain(&Chain{Name: "x", Base: &Base{Hook: Prerouting, Type: Filter, Priority: -300},
		Rules: []Rule{act(Drop, match(NoReturnRoute))}})
	for _, test := range tests {
		if got := table.Eval(&host, Prerouting, test.packet, nil); got.Accepted() == test.drop {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

// Connection tracking at -400 puts fragments together.
func TestFragmentsAreSeenBeforeReassembly(t *testing.T) {
	for _, c := range []struct {
		hook     Hook
		priority int32
		want     bool
	}{{Prerouting, -450, true}, {Prerouting, -400, false}, {Output, -401, true}, {Forward, -450, false},
		{Input, -450, false}} {
		table := NewTable()
		table.SetChain(&Chain{Name: "x", Base: &Base{Hook: c.hook, Type: Filter, Priority: c.priority},
			Rules: []Rule{act(Drop, match(Fragment))}})
		for _, fragment := range []bool{true, false} {
			p := Packet{Source: netip.MustParseAddr("10.0.0.1"), Destination: netip.MustParseAddr("10.0.0.2"),
				Fragment: fragment}
			if got := table.Eval(nil, c.hook, p, nil).Accepted(); got == (c.want && fragment) {
				t.Errorf("%v at %d: fragment %v accepted: %v", c.hook, c.priority, fragment, got)
			}
		}
	}
}

func TestTraceText(t *testing.T) {
	c := outputCase{chains: []*Chain{
		output("filter-output", 0, act(Accept, Match{Field: ConnState, Mask: ConnEstablished | ConnRelated}), jump("d"),
			mark(1)),
		chain("d", byOut, act(Drop)),
		chain("e", Rule{Over: Limit{Packets: 5}, Verdict: verdict(Drop)},
			Rule{Matches: []Match{ipv4, udp, {Field: DestinationPort, Low: 80, High: 90}}, Verdict: verdict(Accept),
				Comment: "NetworkPolicy/default/web egress 1"},
			Rule{Matches: []Match{ipv4, not(inSet(Destination, "h4"))}, Counter: true, Verdict: verdict(Return),
				Comment: "NetworkPolicy/default/web egress 2"}),
		output("last", 1, act(Drop)),
	}, entry: Verdict{Action: Goto, Chain: "e"}}
	var trace Trace
	c.table().EvalOutput(nil, outputPacket(), &trace)
	want := `output, chain filter-output:
  filter-output 1: no, not ct state established,related
  filter-output 2: jump d
    d 1: oifname vmap @m which is goto e
    e 1: no, not limit rate over 5/second
    e 2 (NetworkPolicy/default/web egress 1): no, not udp dport 80-90
    e 3 (NetworkPolicy/default/web egress 2): counter return
  filter-output 3: meta mark set meta mark | 0x1
  accept: the end of filter-output
output, chain last:
  last 1: drop
`
	if got := trace.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
