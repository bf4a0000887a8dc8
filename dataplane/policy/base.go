package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// Names of maps and of the chains that look interfaces up in them.
const (
	fromWorkload = "from-workload"
	toWorkload   = "to-workload"
	workloadSent = "sent-by-workload"
	sourceCheck  = "source-check"
	neighbours   = "neighbour-discovery"
	limited      = "neighbour-discovery-limited"
	neighbourMap = "neighbour-limits"
	unspecified  = "unspecified-source"
	errorsMap    = "icmp-errors"
	relatedChain = "related-from-workload"
	early        = "early"
	serviceLoop  = "forward-service-loop"
	clampMSS     = "forward-clamp-mss"

	poolsSet      = "pools"
	masqueradeSet = "masquerade"
	hostsSet      = "hosts"
	bgpPortsSet   = "bgp-ports"
	nodePortsSet  = "node-ports"
	nodesOwn      = "nodes-own"
	keptSource    = "kept-source"
	loopSet       = "service-loop"
	localSet      = "local-workloads"
	ownSet        = "own-addresses6"
)

// writeBase writes the chains that do not depend on endpoints: where packets enter and which way they go. Each stage is
// a base chain of its own, so that to accept in one of them leads on to the next.
func (c *Calculator) writeBase() {
	s := &c.settings.settings
	for _, m := range []string{fromWorkload, toWorkload, sourceCheck, neighbourMap, early, errorsMap} {
		c.table.AddMap(ruleset.Map{Name: m})
	}
	unknown := func(p purpose) ruleset.Rule {
		return s.deny("no endpoint is known for this interface", droppedUnknown, p)
	}
	c.table.SetChain(dispatch(fromWorkload, false, unknown(normalOut)))
	c.table.SetChain(dispatch(toWorkload, true, unknown(normalIn)))
	c.table.SetChain(dispatch(sourceCheck, false, s.noReturnRoute()))
	c.table.SetChain(dispatch(early, false, unknown(untrackedOut)))
	c.table.AddSet(ruleset.Set{Name: ownSet, Type: ruleset.Addresses6, Comment: "addresses of this node",
		Origin: EndpointSet})

	chain := func(name string, origin ruleset.Origin, b *ruleset.Base, rules ...[]ruleset.Rule) {
		c.table.SetChain(&ruleset.Chain{Name: name, Origin: origin, Base: b, Rules: slices.Concat(rules...)})
	}
	chain(limited, nil, nil, []ruleset.Rule{{Verdict: ruleset.Verdict{Action: ruleset.Lookup, Map: neighbourMap}},
		{Verdict: accept, Comment: discoveryComment}})
	chain(neighbours, nil, nil, s.neighbourDiscovery(goTo(limited)))
	chain(neighbours+"-to-host", nil, nil, s.neighbourDiscovery(accept))
	chain(relatedChain, nil, nil, s.related())
	chain(unspecified, nil, nil, s.unspecifiedRules())
	chain(workloadSent, nil, nil, s.sent())
	chain(keptSource, nil, nil, keptSourceRules())
	chain(nodesOwn, nil, nil, s.nodesOwn())

	source, destination, host := Stage{Subject: SourceWorkload}, Stage{Subject: DestinationWorkload},
		Stage{Subject: HostItself}
	chain("prerouting-source", source, base(ruleset.Prerouting, beforeReassembly),
		s.from(goTo(workloadSent)), s.fromOutside())
	chain("output-source", host, base(ruleset.Output, 0), s.fromHost())
	c.writeTunnels()
	chain("input-from-workload", source, base(ruleset.Input, 0), []ruleset.Rule{toNeighbours(neighbours)},
		s.fromLinkLocal(), s.closed(s.from(jump(fromWorkload))))
	chain("input-to-host", host, base(ruleset.Input, 1), s.toHostRules())
	chain("forward-from-workload", source, base(ruleset.Forward, 0), s.closed(s.from(jump(fromWorkload))))
	chain("forward-to-workload", destination, base(ruleset.Forward, 1), s.closed(s.to(jump(toWorkload))))
	if rules := s.serviceLoop(); len(rules) > 0 {
		chain(serviceLoop, destination, base(ruleset.Forward, 3), rules)
	} else {
		c.table.DeleteChain(serviceLoop)
	}
	if c.config.ClampMSS {
		chain(clampMSS, nil, base(ruleset.Forward, beforePolicy), []ruleset.Rule{{Matches: []ruleset.Match{
			{Field: ruleset.Protocol, Low: protoTCP}}, ClampMSS: true, Comment: "--clamp-mss"}})
	}
	if rules := s.unencrypted(); len(rules) > 0 {
		chain(encryption, source, base(ruleset.Forward, 4), rules)
	} else {
		c.table.DeleteChain(encryption)
	}
	c.writeHostTunnels()
	nat := func(priority int32) *ruleset.Base {
		return &ruleset.Base{Hook: ruleset.Postrouting, Type: ruleset.NAT, Priority: priority}
	}
	chain("postrouting-nat", nil, nat(natAfterKubeProxy), s.masquerade())
	chain("postrouting-nodes-own", source, nat(natBeforeOthers), s.beforeNAT())
}

// beforeReassembly is before connection tracking puts fragments together, at -400. The kernel keeps fragments until
// their packet is complete or too old, in little memory: a workload's are checked before.
const beforeReassembly = -450

// beforePolicy is where other programs change packets, too (mangle of iptables).
const beforePolicy = -150

// sent checks a packet that a workload has sent.
func (s *settings) sent() []ruleset.Rule {
	rules := []ruleset.Rule{s.fromUnspecified(), s.toLoopback()}
	for _, family := range families {
		if s.fragments.Packets > 0 {
			rules = append(rules, ruleset.Rule{Matches: []ruleset.Match{ofFamily(family), {Field: ruleset.Fragment}},
				Verdict: jump(early)})
		}
	}
	return append(rules, ruleset.Rule{Verdict: jump(sourceCheck)})
}

// earlyLimits is the chain that bounds what a workload may send of packets that cost memory of the host before policy
// sees them.
func (s *settings) earlyLimits(iface string) *ruleset.Chain {
	chain := &ruleset.Chain{Name: earlyChain(iface)}
	if s.fragments.Packets > 0 {
		// A packet for segmentation offload is one packet, of up to 64 KB: hence the second limit.
		for _, over := range []ruleset.Limit{{Packets: uint64(s.fragments.Packets), Burst: s.fragments.Packets},
			{Bytes: s.fragments.Bytes}} {
			if over != (ruleset.Limit{}) {
				chain.Rules = append(chain.Rules, ruleset.Rule{Over: over, Counter: true, Log: s.dropLog(manyFragments),
					CountedBy: droppedFragments.Counter(), Verdict: ruleset.Verdict{Action: ruleset.Drop},
					Comment: manyFragments})
			}
		}
	}
	return chain
}

func earlyChain(iface string) string { return early + "/" + iface }

const manyFragments = "more fragments than a workload may send"

// natAfterKubeProxy: kube-proxy clears its masquerade mark in its own chain at 100. Translating earlier would leave the
// mark on the packet, and with it on the packet around it in a tunnel.
const natAfterKubeProxy = 110

func base(h ruleset.Hook, priority int32) *ruleset.Base {
	return &ruleset.Base{Hook: h, Type: ruleset.Filter, Priority: priority}
}

var accept = ruleset.Verdict{Action: ruleset.Accept}

func goTo(chain string) ruleset.Verdict { return ruleset.Verdict{Action: ruleset.Goto, Chain: chain} }
func jump(chain string) ruleset.Verdict { return ruleset.Verdict{Action: ruleset.Jump, Chain: chain} }

// dispatch finds the chain of an interface's endpoint. A lookup in the base chain itself would not do: a packet that
// returned there would be accepted by the base chain's policy.
func dispatch(name string, out bool, miss ruleset.Rule) *ruleset.Chain {
	return &ruleset.Chain{Name: name, Rules: []ruleset.Rule{
		{Verdict: ruleset.Verdict{Action: ruleset.Lookup, Map: name, Out: out}},
		miss,
	}}
}

// from are rules for packets that come from workloads.
func (s *settings) from(v ruleset.Verdict) []ruleset.Rule { return s.workloads(ruleset.InInterface, v) }

// to are rules for packets that go to workloads.
func (s *settings) to(v ruleset.Verdict) []ruleset.Rule { return s.workloads(ruleset.OutInterface, v) }

func (s *settings) workloads(f ruleset.Field, v ruleset.Verdict) (rules []ruleset.Rule) {
	for _, p := range s.prefixes {
		rules = append(rules, ruleset.Rule{Matches: []ruleset.Match{{Field: f, Name: p + "*"}}, Verdict: v})
	}
	return rules
}

// closed adds to each rule that jumps to a deciding chain one that drops packets which return undecided: a packet on
// its way while the rules change may find a chain before its content.
func (s *settings) closed(jumps []ruleset.Rule) []ruleset.Rule {
	rules := jumps
	for _, r := range jumps {
		r.Verdict, r.Comment = ruleset.Verdict{Action: ruleset.Drop}, "nothing has decided"
		r.CountedBy = droppedUndecided.Counter()
		rules = append(rules, r)
	}
	return rules
}

// fromUnspecified finds packets from ::, which have no route back.
func (s *settings) fromUnspecified() ruleset.Rule {
	return ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.Family, Low: 6},
		{Field: ruleset.Source, Prefix: netip.MustParsePrefix("::/128")}}, Verdict: goTo(unspecified)}
}

// unspecifiedRules let a workload find out whether its address is free (RFC 4862), and join the group that this needs
// (RFC 3590, RFC 3810). The host would answer all other packets, by its default route.
func (s *settings) unspecifiedRules() []ruleset.Rule {
	var rules []ruleset.Rule
	for _, kind := range []uint32{131, 132, 135, 143} {
		m := append(ofDiscovery(kind), ruleset.Match{Field: ruleset.Destination,
			Prefix: netip.MustParsePrefix("ff00::/8")})
		rules = append(rules, ruleset.Rule{Matches: m, Verdict: accept, Comment: "duplicate address detection"})
	}
	return append(rules, s.drop(spoofed, droppedSource))
}

// ofDiscovery matches an ICMPv6 type of neighbour discovery or MLD with the hop limit that shows that no router has
// passed the packet on: 255 (RFC 4861), or 1 (RFC 2710, RFC 3810).
func ofDiscovery(kind uint32) []ruleset.Match {
	hops := uint32(255)
	if kind <= 132 || kind == 143 {
		hops = 1
	}
	return []ruleset.Match{{Field: ruleset.Family, Low: 6}, {Field: ruleset.Protocol, Low: protoICMPv6},
		{Field: ruleset.ICMP, Low: kind << 8, Mask: 0xff00}, {Field: ruleset.HopLimit, Low: hops}}
}

// toLoopback drops packets that workloads send to addresses in 127.0.0.0/8. Their interfaces have route_localnet, so
// that a service can be translated to a program at 127.0.0.1. The kernel would deliver all other packets to loopback
// addresses, too, and programs that listen there trust that only their host reaches them. Translation comes later
// (-100).
func (s *settings) toLoopback() ruleset.Rule {
	return s.drop("a loopback address of this host", droppedLoopback, ofFamily(4),
		ruleset.Match{Field: ruleset.Destination, Prefix: netip.MustParsePrefix("127.0.0.0/8")})
}

// toNeighbours spares all other packets the rules about neighbour discovery.
func toNeighbours(chain string) ruleset.Rule {
	return ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.Family, Low: 6},
		{Field: ruleset.Protocol, Low: protoICMPv6}}, Verdict: jump(chain)}
}

const discoveryComment = "neighbour discovery"

// neighbourDiscovery lets workloads find this host as their router, and join multicast groups, whatever the policy. It
// is for packets that come to this host: none of them is forwarded.
func (s *settings) neighbourDiscovery(v ruleset.Verdict) []ruleset.Rule {
	var rules []ruleset.Rule
	for _, p := range s.prefixes {
		for _, kind := range []uint32{130, 131, 132, 133, 135, 136} {
			rules = append(rules, ruleset.Rule{Verdict: v, Comment: discoveryComment,
				Matches: append([]ruleset.Match{{Field: ruleset.InInterface, Name: p + "*"}}, ofDiscovery(kind)...)})
		}
	}
	return rules
}

// fromLinkLocal limits what else begins at a link-local address, which the source check cannot hold against a workload:
// to answer, the host needs an entry in its table of neighbours.
func (s *settings) fromLinkLocal() []ruleset.Rule {
	rules := s.from(ruleset.Verdict{Action: ruleset.Lookup, Map: neighbourMap})
	for i := range rules {
		rules[i].Matches = append(rules[i].Matches, ruleset.Match{Field: ruleset.Family, Low: 6},
			ruleset.Match{Field: ruleset.Source, Prefix: netip.MustParsePrefix("fe80::/10")},
			ruleset.Match{Field: ruleset.ConnState, Mask: ruleset.ConnNew})
	}
	return rules
}

// neighbourLimit bounds the packets of a workload that may each make an entry in the host's table of neighbours, which
// has 1024 at most, for all interfaces and network namespaces together. The kernel frees entries that are older than
// five seconds when the table is full, so a workload fills 80 at most. A pod sends about ten such packets when it
// starts, and then one or two a minute for each of its addresses.
var neighbourLimit = ruleset.Limit{Packets: 10, Burst: 30}

// neighbourChain is the limit of one workload. The kernel keeps the state in the rule, so nothing else is in the chain:
// see rates.chains.
func neighbourChain(iface string) *ruleset.Chain {
	return &ruleset.Chain{Name: "neighbours/" + iface, Rules: []ruleset.Rule{{Over: neighbourLimit, Counter: true,
		CountedBy: droppedNeighbours.Counter(), Verdict: ruleset.Verdict{Action: ruleset.Drop},
		Comment: "too many packets of neighbour discovery"}}}
}

// fromOutside drops packets that pretend to come from a workload of this node, or with IPv6 from the host: policy would
// take them for those. Those that workloads sent have been found before. The sets, which few packets are
// in, are for speed: what a WorkloadEndpoint claims without a route to it does not count, nor does an address that left
// this host. The kernel itself drops IPv4 packets from an own address (martian source), and has multicast packets that
// this host sends come in again. The rules are in the base chain itself: in a chain of their own that the kernel
// refuses, all packets from outside would be dropped.
func (s *settings) fromOutside() []ruleset.Rule {
	if s.trustOutside {
		return nil
	}
	rules := []ruleset.Rule{{Matches: []ruleset.Match{{Field: ruleset.InInterface, Name: "lo"}}, Verdict: accept}}
	drop := func(from []ruleset.Match, more ...ruleset.Match) {
		rules = append(rules, s.drop("from outside with an address of this node", droppedBorrowed,
			append(from, more...)...))
	}
	for _, family := range families {
		for _, p := range s.prefixes {
			drop(ofSet(family, ruleset.Source, localSet), ruleset.Match{Field: ruleset.SourceRoute, Name: p + "*"})
		}
	}
	drop([]ruleset.Match{ofFamily(6), {Field: ruleset.Source, Set: ownSet}}, ruleset.Match{Field: ruleset.SourceLocal},
		ruleset.Match{Field: ruleset.Destination, Not: true, Prefix: netip.MustParsePrefix("ff00::/8")})
	return rules
}

// fromHost drops packets that a program of this host sends with the address of a workload here: Linux lets every
// user bind any address of IPv6 (IPV6_FREEBIND). Packets of known connections pass: the host resets connections in the
// name of workloads.
func (s *settings) fromHost() []ruleset.Rule {
	if s.trustOutside {
		return nil
	}
	rules := []ruleset.Rule{{Matches: []ruleset.Match{established}, Verdict: accept}}
	for _, family := range families {
		rules = append(rules, s.drop("from this host with the address of a workload", droppedBorrowed,
			append(ofSet(family, ruleset.Source, localSet), ruleset.Match{Field: ruleset.SourceLocal, Not: true})...))
	}
	return rules
}

// settleOwn enters this host's own addresses. Link-local ones may be on other links, too.
func (c *Calculator) settleOwn() {
	if !c.hosts.dirty {
		return
	}
	var own []ruleset.Element
	for name, addresses := range c.hosts.links {
		for _, a := range addresses {
			if a.Is6() && !a.IsLinkLocalUnicast() && !a.IsLoopback() && !c.settings.isWorkload(name) {
				own = append(own, ruleset.Element{Prefix: hostPrefix(a)})
			}
		}
	}
	c.table.fill(ownSet, own)
}

// related finds the ICMP errors about connections. The kernel calls an error related whoever sends it: its quote of a
// packet is enough, and can be guessed.
func (s *settings) related() []ruleset.Rule {
	errors := ruleset.Verdict{Action: ruleset.Lookup, Map: errorsMap}
	icmp, icmp6 := ruleset.Match{Field: ruleset.Protocol, Low: protoICMP}, ruleset.Match{Field: ruleset.Protocol,
		Low: protoICMPv6}
	return []ruleset.Rule{
		s.drop("an ICMP redirect of a workload", droppedICMP, icmp,
			ruleset.Match{Field: ruleset.ICMP, Low: 5 << 8, Mask: 0xff00}),
		{Matches: []ruleset.Match{icmp}, Verdict: errors},
		{Matches: []ruleset.Match{icmp6}, Verdict: errors},
		{Verdict: accept},
	}
}

// errorsChain lets the errors of a workload pass that are about its own connections: it is the client, or behind all
// translation the server.
func (s *settings) errorsChain(iface string, addresses []netip.Prefix) *ruleset.Chain {
	chain := &ruleset.Chain{Name: "icmp-errors/" + iface}
	for _, a := range addresses {
		for _, f := range []ruleset.Field{ruleset.ConnSource, ruleset.ConnReplySource} {
			chain.Rules = append(chain.Rules, ruleset.Rule{Matches: []ruleset.Match{{Field: f, Prefix: a}},
				Verdict: accept})
		}
	}
	chain.Rules = append(chain.Rules, s.drop("an ICMP error about a connection of others", droppedICMP))
	return chain
}

// toHostRules write the rules for packets from workloads to this host that their policies allow.
func (s *settings) toHostRules() []ruleset.Rule {
	if s.toHost.Action == ruleset.Accept {
		return nil
	}
	rules := append([]ruleset.Rule{toNeighbours(neighbours + "-to-host")}, s.from(accept)...)
	for i := len(rules) - len(s.prefixes); i < len(rules); i++ {
		rules[i].Matches = append(rules[i].Matches, established)
	}
	for _, r := range s.from(s.toHost) {
		r.Comment, r.CountedBy = "defaultEndpointToHostAction", droppedToHost.Counter()
		rules = append(rules, r)
	}
	return rules
}

// serviceLoop stops packets to untranslated addresses of services: their route would lead in circles. No host answers
// them, so established connections need no check.
func (s *settings) serviceLoop() []ruleset.Rule {
	if s.loop == ruleset.Continue || s.services == [2]bool{} {
		return nil
	}
	rules := []ruleset.Rule{{Matches: []ruleset.Match{established}, Verdict: accept}}
	for i, family := range families {
		if s.services[i] {
			rules = append(rules, ruleset.Rule{Matches: ofSet(family, ruleset.Destination, loopSet),
				Verdict: ruleset.Verdict{Action: s.loop}, Comment: "a service address that nobody serves",
				CountedBy: droppedService.Counter(), Origin: Unserved{}})
		}
	}
	return rules
}

// encryption is the chain of unencrypted.
const encryption = "forward-unencrypted"

// unencrypted drops packets of workloads to addresses of pools that leave this host by another way than encrypted,
// while that is required. The routes refuse most of them before; these rules hold while routes change, too.
func (s *settings) unencrypted() (rules []ruleset.Rule) {
	for _, t := range s.tunnels {
		if !s.encrypted || !t.used || !t.packets.Authentic {
			continue
		}
		m := append(ofSet(uint32(t.family), ruleset.Destination, poolsSet),
			ruleset.Match{Field: ruleset.OutInterface, Not: true, Name: t.device})
		for _, p := range s.prefixes {
			m = append(m, ruleset.Match{Field: ruleset.OutInterface, Not: true, Name: p + "*"})
		}
		for _, r := range s.from(ruleset.Verdict{Action: ruleset.Drop}) {
			r.Matches = append(r.Matches, m...)
			r.Comment, r.CountedBy = "it would leave unencrypted", droppedPlain.Counter()
			rules = append(rules, r)
		}
	}
	return rules
}

// masquerade translates packets that leave the cluster from pools with natOutgoing, and packets that this host sends
// into a tunnel from an address that the other end could not answer to.
func (s *settings) masquerade() []ruleset.Rule {
	var rules []ruleset.Rule
	if s.floating {
		rules = append(rules, ruleset.Rule{Verdict: jump(floatingOut)})
	}
	for _, family := range families {
		m := append(ofSet(family, ruleset.Source, masqueradeSet),
			ruleset.Match{Field: ruleset.Destination, Not: true, Set: poolsSet + fmt.Sprint(family)})
		if s.natHosts {
			m = append(m, ruleset.Match{Field: ruleset.Destination, Not: true, Set: hostsSet + fmt.Sprint(family)})
		}
		if s.natInterface != "" {
			m = append(m, ruleset.Match{Field: ruleset.OutInterface, Name: wildcard(s.natInterface)})
		}
		v := ruleset.Verdict{Action: ruleset.Masquerade, Random: true}
		if s.natAddress.IsValid() && s.natAddress.Is4() == (family == 4) {
			v = ruleset.Verdict{Action: ruleset.SNAT, Address: s.natAddress, Random: true}
		}
		rules = append(rules, s.withPorts(ruleset.Rule{Matches: m, Verdict: v, Comment: "natOutgoing"})...)
	}
	for _, t := range s.tunnels {
		if t.used {
			rules = append(rules, ruleset.Rule{
				Matches: append([]ruleset.Match{{Field: ruleset.OutInterface, Name: t.device},
					{Field: ruleset.SourceLocal},
					{Field: ruleset.SourceOfOutInterface, Not: true}}, s.notTheNodes(t.device)...),
				Verdict: ruleset.Verdict{Action: ruleset.Masquerade, Random: true},
				Comment: "the tunnel's own address"})
		}
	}
	return rules
}

// nodePacket is a kind of packet by which others take the sender's address for that of the node itself.
type nodePacket struct {
	name    string
	matches []ruleset.Match
}

// nodePackets are BGP, BFD and tunnels to everyone, and etcd and WireGuard to nodes.
func (s *settings) nodePackets() []nodePacket {
	tcp, udp := ruleset.Match{Field: ruleset.Protocol, Low: protoTCP}, ruleset.Match{Field: ruleset.Protocol,
		Low: protoUDP}
	list := []nodePacket{
		{"BGP", []ruleset.Match{tcp, {Field: ruleset.DestinationPort, Set: bgpPortsSet}}},
		{"BFD or a tunnel", []ruleset.Match{udp, {Field: ruleset.DestinationPort, Set: nodePortsSet}}},
	}
	for _, family := range families {
		to := ofSet(family, ruleset.Destination, hostsSet)
		list = append(list, nodePacket{"etcd", append(slices.Clone(to), tcp,
			ruleset.Match{Field: ruleset.DestinationPort, Low: 2379, High: 2380})})
		for _, port := range s.wireGuardPorts {
			list = append(list, nodePacket{"WireGuard", append(slices.Clone(to), udp,
				ruleset.Match{Field: ruleset.DestinationPort, Low: port})})
		}
	}
	return list
}

// translatable are the protocols that connections of workloads to the outside use. Any other one may be of a tunnel or
// a router (GRE, ESP, OSPF), to whose peer the node's address may mean the node.
var translatable = []uint32{protoTCP, protoUDP, protoICMP, protoICMPv6, protoSCTP, protoUDPLite, protoDCCP}

// natBeforeOthers is the least priority that the kernel takes: no other program has translated the connection.
const natBeforeOthers = -199

// beforeNAT finds the connections of workloads: of this node, and of others on their way through this one, which would
// have natOutgoing here.
func (s *settings) beforeNAT() []ruleset.Rule {
	rules := s.from(jump(nodesOwn))
	var elsewhere []ruleset.Match
	for _, p := range s.prefixes {
		elsewhere = append(elsewhere, ruleset.Match{Field: ruleset.InInterface, Not: true, Name: p + "*"})
	}
	for _, family := range families {
		m := append(ofSet(family, ruleset.Source, masqueradeSet), ruleset.Match{Field: ruleset.SourceLocal, Not: true})
		rules = append(rules, ruleset.Rule{Verdict: jump(nodesOwn), Matches: append(m, elsewhere...)})
	}
	return rules
}

// nodesOwn finds a workload's connections by which the receiver could take it for its node, if they had the node's
// address: a BGP peer, for instance, would end its session with the node, and accept the routes of the workload.
func (s *settings) nodesOwn() []ruleset.Rule {
	var rules []ruleset.Rule
	keep := func(name string, m ...ruleset.Match) {
		rules = append(rules, ruleset.Rule{Matches: m, Comment: name + " keeps the workload's address",
			Verdict: goTo(keptSource)})
	}
	for _, p := range s.nodePackets() {
		keep(p.name, p.matches...)
	}
	tcp := ruleset.Match{Field: ruleset.Protocol, Low: protoTCP}
	keep("BGP", tcp, ruleset.Match{Field: ruleset.SourcePort, Set: bgpPortsSet})
	// The kernel translates each of these ports to any other one of them, BGP's, too.
	keep("a reserved port", tcp, ruleset.Match{Field: ruleset.SourcePort, Low: 1, High: 511})
	for _, p := range translatable {
		rules = append(rules, ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.Protocol, Low: p}},
			Verdict: ruleset.Verdict{Action: ruleset.Return}})
	}
	keep("a protocol without translation")
	return rules
}

// keptSourceRules keep all programs from translating the source of a connection.
func keptSourceRules() (rules []ruleset.Rule) {
	for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		rules = append(rules, ruleset.Rule{Verdict: ruleset.Verdict{Action: ruleset.KeepSource, Address: family}})
	}
	return rules
}

// withPorts limits translated ports as configured, for the protocols that have ports.
func (s *settings) withPorts(r ruleset.Rule) []ruleset.Rule {
	if s.natPorts[1] == 0 {
		return []ruleset.Rule{r}
	}
	var rules []ruleset.Rule
	for _, protocol := range []uint32{protoTCP, protoUDP} {
		limited := r
		limited.Matches = append(slices.Clone(r.Matches), ruleset.Match{Field: ruleset.Protocol, Low: protocol})
		limited.Verdict.Low, limited.Verdict.High = s.natPorts[0], s.natPorts[1]
		rules = append(rules, limited)
	}
	return append(rules, r)
}

// wildcard turns iptables' spelling of "begins with" into nftables'.
func wildcard(name string) string {
	if n := len(name); n > 0 && name[n-1] == '+' {
		return name[:n-1] + "*"
	}
	return name
}
