package nftables

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// othersHost is a namespace that forwards between a workload behind cali1 and another host behind e1.
type othersHost struct {
	t     *testing.T
	ns    string
	conn  *Conn
	ports uint16
}

const (
	othersWorkload = "10.1.0.9"
	othersOutside  = "10.2.0.9"
)

func newOthersHost(t *testing.T) *othersHost {
	ns, n := forwarding(t)
	sh(t, ns, `set -e
		ip link set e0 down; ip link set e0 name cali1; ip link set cali1 up
		ip link set e0p down; ip link set e0p name cali1p; ip link set cali1p up
		ip neigh add `+othersWorkload+` lladdr 02:00:00:00:00:01 dev cali1
		ip neigh add `+othersOutside+` lladdr 02:00:00:00:00:02 dev e1`)
	h := &othersHost{t: t, ns: ns, conn: n}
	return h
}

func sh(t *testing.T, ns, script string) string {
	t.Helper()
	return nettest.Run(t, "ip", "netns", "exec", ns, "sh", "-c", script)
}

// load replaces all rules. A table counts the packets that were forwarded.
func (h *othersHost) load(script string) {
	h.t.Helper()
	sh(h.t, h.ns, "set -e\nnft flush ruleset\n"+script+`
		nft -f - <<-"EOF"
		table ip counted {
			chain out { type filter hook postrouting priority 1000; udp dport 7777 counter; }
		}
		EOF`)
}

// forwarded sends the first packet of a flow, and reports whether the kernel forwards it.
func (h *othersHost) forwarded(device, from, to string) bool {
	h.t.Helper()
	h.ports++ // of no tracked connection
	before := h.counted()
	frameInto(h.t, h.conn, h.ns, device, netip.AddrPortFrom(addr(from), 20000+h.ports),
		netip.AddrPortFrom(addr(to), 7777))
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		if h.counted() != before {
			return true
		}
	}
	return false
}

func (h *othersHost) counted() string {
	h.t.Helper()
	return nft(h.t, h.ns, "list", "table", "ip", "counted")
}

// judge returns the chains that should drop a packet.
func (h *othersHost) judge(in, out, from, to string) (dropped []hostfirewall.Dropped, mayDrop []string) {
	h.t.Helper()
	tables, err := h.conn.ReadOthers(func(index uint32) (name string) {
		if err := h.conn.namespace.Do(func() error {
			i, err := net.InterfaceByIndex(int(index))
			if err == nil {
				name = i.Name
			}
			return nil
		}); err != nil {
			h.t.Fatal(err)
		}
		return name
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return hostfirewall.Judge(tables, hostfirewall.Packet{In: hostfirewall.Interface{Name: in},
		Out: hostfirewall.Interface{Name: out}, Source: netip.PrefixFrom(addr(from), 32),
		Destination: netip.PrefixFrom(addr(to), 32), Protocol: 17, SourcePort: 20001, DestinationPort: 7777,
		State: hostfirewall.StateNew})
}

func iptablesScript(rules string) string {
	return "iptables-nft-restore <<-'EOF'\n*filter\n" + rules + "\nCOMMIT\nEOF\n"
}

func nftScript(rules string) string {
	return "nft -f - <<-'EOF'\n" + strings.ReplaceAll(rules, "; }", ";\n}\n") + "\nEOF\n"
}

func forward(rules string) string {
	return nftScript("table inet x {\nchain f { type filter hook forward priority 0; policy drop;\n" + rules + "\n}\n}")
}

const byDocker = `:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-CT - [0:0]
:DOCKER-BRIDGE - [0:0]
:DOCKER-FORWARD - [0:0]
:DOCKER-INTERNAL - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-INTERNAL
-A DOCKER-FORWARD -j DOCKER-BRIDGE
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-BRIDGE -o docker0 -j DOCKER
-A DOCKER ! -i docker0 -o docker0 -j DROP
`

const byKubeProxy = `:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "x has no endpoints" -m udp --dport 53 -j REJECT`

// byFirewalld is the form of firewalld's rules for two zones; SOURCES has those of zones that are bound to addresses.
const byFirewalld = `table inet firewalld {
	chain filter_PREROUTING { type filter hook prerouting priority -290; policy accept;
		meta nfproto ipv6 fib saddr . mark . iif oif missing drop; }
	chain filter_FORWARD { type filter hook forward priority 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip6 daddr { ::/96, 2002::/24 } reject with icmpv6 addr-unreachable
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited; }
	chain filter_FORWARD_ZONES {
		SOURCES
		iifname "lo" goto filter_FWD_trusted
		goto filter_FWD_public; }
	chain filter_FWD_public { jump filter_FWD_public_log; reject with icmpx admin-prohibited; }
	chain filter_FWD_public_log { }
	chain filter_FWD_trusted { accept; }
}`

// otherRules are rules of other programs, and what they do with new connections of a workload to another host (out),
// and of the host to the workload (in). Unsure: a condition before the drop cannot be read.
var otherRules = []struct {
	name, script    string
	dropOut, dropIn bool
	unsure, mayDrop bool
	iptables        bool
}{
	{name: "none"},
	{name: "Docker", iptables: true, script: iptablesScript(byDocker), dropOut: true, dropIn: true},
	{name: "Docker with the remedy", iptables: true, script: iptablesScript(byDocker +
		"-I DOCKER-USER -i cali+ -j ACCEPT\n-I DOCKER-USER -o cali+ -j ACCEPT")},
	{name: "Docker with half of the remedy", iptables: true, dropIn: true,
		script: iptablesScript(byDocker + "-I DOCKER-USER -i cali+ -j ACCEPT")},
	{name: "a policy of drop", iptables: true, script: iptablesScript(":FORWARD DROP"), dropOut: true, dropIn: true},
	{name: "one direction by address", iptables: true, dropIn: true,
		script: iptablesScript(":FORWARD DROP\n-A FORWARD -s 10.1.0.0/16 -d 10.0.0.0/12 -j ACCEPT")},
	{name: "other addresses", iptables: true, dropOut: true, dropIn: true,
		script: iptablesScript(":FORWARD DROP\n-A FORWARD -s 10.1.1.0/23 ! -d 10.2.0.0/23 -j ACCEPT")},
	{name: "known connections alone", iptables: true, dropOut: true, dropIn: true,
		script: iptablesScript(":FORWARD DROP\n-A FORWARD -m state --state RELATED,ESTABLISHED -j ACCEPT")},
	{name: "new connections by the older match", iptables: true,
		script: iptablesScript(":FORWARD DROP\n-A FORWARD -m state --state NEW -j ACCEPT")},
	{name: "all but established ones", iptables: true,
		script: iptablesScript(":FORWARD DROP\n-A FORWARD -m conntrack ! --ctstate ESTABLISHED -j ACCEPT")},
	{name: "a reject at the end", iptables: true, dropOut: true, dropIn: true,
		script: iptablesScript("-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n-A FORWARD -j REJECT")},
	{name: "a protocol", iptables: true, script: iptablesScript("-A FORWARD -p tcp -j DROP")},
	{name: "a port", iptables: true, dropOut: true, dropIn: true,
		script: iptablesScript(":FORWARD DROP\n-A FORWARD -p udp -m udp --dport 7000:7776 -j ACCEPT")},
	{name: "ports that cannot be read", iptables: true, unsure: true,
		script: iptablesScript(":FORWARD DROP\n-A FORWARD -p udp -m multiport --dports 53,7777 -j ACCEPT")},
	{name: "a drop with a condition that cannot be read", iptables: true, mayDrop: true,
		script: iptablesScript("-A FORWARD -m length --length 9999 -j DROP")},
	{name: "a chain that returns", iptables: true,
		script: iptablesScript(":A - [0:0]\n-A FORWARD -j A\n-A A -i cali+ -j RETURN\n-A A -o cali+ -j RETURN\n" +
			"-A A -j DROP")},
	{name: "goto", iptables: true, dropOut: true,
		script: iptablesScript(":A - [0:0]\n-A FORWARD -i cali+ -g A\n-A FORWARD -j ACCEPT\n-A A -i e1 -j ACCEPT\n" +
			"-P FORWARD DROP")},
	{name: "kube-proxy", iptables: true,
		script: iptablesScript(byKubeProxy)},
	{name: "raw, before connection tracking", iptables: true, dropOut: true,
		script: "iptables-nft -t raw -A PREROUTING -i cali1 -p udp -j DROP\n"},
	{name: "mangle", iptables: true, dropIn: true, script: "iptables-nft -t mangle -A FORWARD -i e1 -j DROP\n"},
	{name: "rules of a dead calico-node", iptables: true, dropOut: true, script: iptablesScript(`:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
:cali-fw-cali9 - [0:0]
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A cali-FORWARD -m comment --comment "cali:8ZoYfO5HKXWbB3pk" -i cali+ -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -m comment --comment "cali:zTj6P0TIgYvgz-md" -i cali9 -g cali-fw-cali9
-A cali-from-wl-dispatch -m comment --comment "cali:fojgNoMtSVGGbuvA" -m comment --comment "Unknown interface" -j DROP
-A cali-fw-cali9 -j ACCEPT`)},

	{name: "nftables", script: forward(""), dropOut: true, dropIn: true},
	{name: "wildcards", script: forward("iifname \"cali*\" accept\noifname \"cali*\" accept")},
	{name: "a set of names",
		script: forward("iifname { \"cali*\", \"tap*\" } accept\niifname { \"e1\", \"e7\" } accept")},
	{name: "a set of other names", script: forward("iifname { \"calix*\", \"cal\", \"tap0\" } accept"), dropOut: true,
		dropIn: true},
	{name: "indexes of interfaces", script: forward("iif \"cali1\" accept"), dropIn: true},
	{name: "other than an interface", script: forward("iifname != \"e1\" accept"), dropIn: true},
	{name: "a map of states", dropOut: true, dropIn: true,
		script: forward("ct state vmap { established : accept, related : accept, invalid : drop }")},
	{name: "a map of states with new ones", script: forward("ct state vmap { established : accept, new : accept }")},
	{name: "a map of interfaces", dropIn: true, script: nftScript(`table inet x {
		chain a { accept; }
		chain f { type filter hook forward priority 0; iifname vmap { "cali1" : jump a, * : drop }
; } }`)},
	{name: "a set of states", script: forward("ct state { established, related } accept"), dropOut: true, dropIn: true},
	{name: "ranges of addresses", dropIn: true,
		script: forward("ip saddr { 10.1.0.7-10.1.0.9, 192.168.0.0/16 } ip daddr != 10.3.0.0/16 accept")},
	{name: "ranges that end before", script: forward("ip saddr { 10.1.0.7-10.1.0.8, 192.168.0.0/16 } accept"),
		dropOut: true, dropIn: true},
	{name: "a range without a set", script: forward("ip saddr 10.1.0.0-10.1.0.9 accept"), dropIn: true},
	{name: "addresses below and above", dropIn: true,
		script: forward("ip saddr < 10.2.0.0 ip daddr > 10.2.0.8 accept")},
	{name: "ports in a set", script: forward("udp dport { 53, 7000-8000 } accept")},
	{name: "ports below", script: forward("udp dport < 7777 accept"), dropOut: true, dropIn: true},
	{name: "ports from", script: forward("udp dport >= 7777 accept")},
	{name: "the other family", script: forward("meta nfproto ipv6 accept\nip6 saddr ::/0 accept"), dropOut: true,
		dropIn: true},
	{name: "a named set", script: nftScript(`table inet x {
		set s { type ipv4_addr; flags interval; elements = { 10.0.0.0/8 }; }
		chain f { type filter hook forward priority 0; policy drop; ip saddr @s accept; } }`), unsure: true},
	{name: "a mark", script: forward("meta mark 0x4000 accept\nmeta mark and 0x4000 == 0x4000 accept"), dropOut: true,
		dropIn: true},
	{name: "no mark", script: forward("meta mark and 0x4000 == 0 accept")},
	{name: "the reverse path", mayDrop: true, script: nftScript(`table inet x { chain p {
		type filter hook prerouting priority -300; fib saddr . iif oif missing drop; } }`)},
	{name: "a limit", unsure: true, script: forward("limit rate 1000/second accept")},
	{name: "translated connections", script: forward("ct status dnat accept"), dropOut: true, dropIn: true},
	{name: "a header that cannot be read", mayDrop: true, script: nftScript(`table inet x { chain p {
		type filter hook forward priority 0; ip ttl 1 drop; } }`)},
	{name: "a dormant table", script: nftScript(`table inet x { flags dormant; chain f {
		type filter hook forward priority 0; policy drop; } }`)},
	{name: "the netdev and bridge families, which are not read", script: nftScript(`table bridge x { chain f {
		type filter hook forward priority 0; policy drop; } }`)},
	{name: "after Manx", dropOut: true, dropIn: true, script: nftScript(`table ip x { chain f {
		type filter hook postrouting priority 300; udp dport 7777 drop; } }`)},
	{name: "firewalld", script: nftScript(strings.Replace(byFirewalld, "SOURCES", "", 1)), dropOut: true, dropIn: true},
	{name: "firewalld with a zone by address", dropIn: true,
		script: nftScript(strings.Replace(byFirewalld, "SOURCES", "ip saddr 10.1.0.0/16 goto filter_FWD_trusted", 1))},
	{name: "kube-proxy by nftables", script: nftScript(`table ip kube-proxy {
		map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict
			elements = { 10.96.0.9 . udp . 53 : goto reject-chain }; }
		chain reject-chain { reject; }
		chain service-endpoints-check { ip daddr . meta l4proto . th dport vmap @no-endpoint-services; }
		chain cluster-ips-check { ip daddr 10.96.0.0/16 reject comment "Reject traffic to invalid ports"; }
		chain filter-forward { type filter hook forward priority -110; policy accept;
			ct state new jump service-endpoints-check
			ct state new jump cluster-ips-check; } }`)},
}

// What is said of other programs' rules is what the kernel does with packets.
func TestRulesOfOthersAndPackets(t *testing.T) {
	h := newOthersHost(t)
	_, noIPTables := exec.LookPath("iptables-nft-restore")
	for _, c := range otherRules {
		t.Run(c.name, func(t *testing.T) {
			if c.iptables && noIPTables != nil {
				t.Skip(noIPTables)
			}
			h.t = t
			h.load(c.script)
			for _, d := range []struct {
				in, out, from, to string
				drop              bool
			}{{"cali1", "e1", othersWorkload, othersOutside, c.dropOut},
				{"e1", "cali1", othersOutside, othersWorkload, c.dropIn}} {
				passes := h.forwarded(d.in, d.from, d.to)
				dropped, mayDrop := h.judge(d.in, d.out, d.from, d.to)
				certain := len(dropped) > 0 && dropped[0].Certain
				switch text := fmt.Sprintf("in by %s: %+v, %q", d.in, dropped, mayDrop); {
				case !c.unsure && passes == d.drop:
					t.Errorf("%s: the kernel forwards it: %v", text, passes)
				case !c.unsure && certain != d.drop, !c.unsure && len(dropped) > 0 != d.drop:
					t.Errorf("%s: it should be dropped: %v", text, d.drop)
				case c.unsure && (len(dropped) == 0 || certain || len(dropped[0].Except) == 0):
					t.Errorf("%s: it should be unsure, with the rule", text)
				case c.mayDrop && len(mayDrop) == 0:
					t.Errorf("%s: the rule that may drop it should be named", text)
				}
			}
		})
	}
}

// Our own table, and the tables that trace packets, are no other program's. Chains of translation are not read, however
// many there are.
func TestReadOthersLeavesOut(t *testing.T) {
	ns, n := rulesNS(t)
	w := ruleset.NewTable()
	w.SetChain(&ruleset.Chain{Name: "f", Base: &ruleset.Base{Hook: ruleset.Forward, Type: ruleset.Filter}})
	commitRules(t, n, w.TakeChanges())
	before, err := n.Generation()
	if err != nil || before == 0 {
		t.Fatalf("generation %d, %v", before, err)
	}
	nft(t, ns, "add table inet manx-trace-x; add chain inet manx-trace-x c { type filter hook forward priority 0; }; "+
		"add table ip nat; add chain ip nat big; add chain ip nat pre { type nat hook prerouting priority 0; }; "+
		"add rule ip nat pre jump big")
	if after, err := n.Generation(); err != nil || after <= before {
		t.Errorf("generation %d after %d, %v", after, before, err)
	}
	tables, err := n.ReadOthers(func(uint32) string { return "" })
	if err != nil || len(tables) > 0 {
		t.Errorf("%v, %v, want none", tables, err)
	}
}

// A table that is too large is read in part, and said to be.
func TestReadOthersIsBounded(t *testing.T) {
	ns, n := rulesNS(t)
	var script strings.Builder
	script.WriteString("nft -f - <<'EOF'\ntable inet x {\n")
	for i := range mostOtherChains + 10 {
		fmt.Fprintf(&script, "chain c%d { }\n", i)
	}
	script.WriteString("chain f { type filter hook forward priority 0; policy drop;\n")
	for i := range mostOtherChains + 10 {
		fmt.Fprintf(&script, "jump c%d\n", i)
	}
	script.WriteString("}\n}\nEOF\n")
	sh(t, ns, script.String())
	tables, err := n.ReadOthers(func(uint32) string { return "" })
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	dropped, mayDrop := hostfirewall.Judge(tables, hostfirewall.Packet{In: hostfirewall.Interface{Any: true},
		Out: hostfirewall.Interface{Any: true}, Source: prefix("10.0.0.0/8"), Destination: prefix("10.0.0.0/8")})
	if len(dropped) > 0 || len(mayDrop) != 1 || !strings.Contains(mayDrop[0], "more than 2000 chains") {
		t.Errorf("%+v, %q", dropped, mayDrop)
	}
}
