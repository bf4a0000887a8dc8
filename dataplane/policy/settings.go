package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/policy/members"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// settings are the parts of FelixConfiguration, pools and nodes that apply to the rules of every endpoint.
type settings struct {
	prefixes     felixconfig.InterfacePrefixes // of workload interfaces
	toHost       ruleset.Verdict
	denyVerdict  ruleset.Action
	flowLog      uint16
	noKernelLog  bool
	keepInvalid  bool
	trustOutside bool
	spoofing     bool              // allowed for workloads that request it
	imitable     []overlay.Packets // that workloads may not send, unless allowed
	tunnels      []tunnel
	// wireGuardPorts are the UDP ports of IPv4 and IPv6.
	wireGuardPorts []uint32
	hostTunnels    []hostTunnel
	encrypted      bool // what leaves for other nodes must be, of families that this node encrypts
	ipv6           bool // there is a pool of IPv6 addresses
	failsafeIn     []failsafe
	failsafeOut    []failsafe
	logPrefix      string
	logRate        uint64
	logPer         ruleset.RateUnit
	logBurst       uint32
	natPorts       [2]uint16
	natAddress     netip.Addr
	natInterface   string
	natHosts       bool // traffic to hosts is not translated either
	floating       bool
	loop           ruleset.Action // for service addresses that no endpoint took; Continue for none
	services       [2]bool        // of IPv4, IPv6: there are such addresses
	fragments      Fragments      // that a workload may send
	marks          Marks
	excluded       excluded
	bad            []string // values of FelixConfiguration that are not in force, and why
}

// currentSettings are those in force.
type currentSettings struct {
	settings
	dirty   bool // an object that they come from changed
	changed bool // in this settle: everything is written again
}

// failsafe is a port that stays open on host endpoints, whatever the policy.
type failsafe struct {
	protocol uint8
	net      netip.Prefix // invalid: any
	port     uint16
}

var defaultFailsafeIn = "tcp:22,udp:68,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667"
var defaultFailsafeOut = "udp:53,udp:67,tcp:179,tcp:2379,tcp:2380,tcp:5473,tcp:6443,tcp:6666,tcp:6667"

// concernsSettings reports whether an object decides about the settings of this node.
func (c *Calculator) concernsSettings(k model.Key) bool {
	switch k.Kind {
	case model.KindFelixConfiguration:
		return felixconfig.Concerns(k.Name, c.config.Node)
	case model.KindBGPConfiguration:
		return k.Name == "default"
	case model.KindNode:
		return k.Name == c.config.Node // its labels select FelixConfigurations
	}
	return k.Kind == model.KindIPPool
}

// felix merges the settings of the cluster, of the node's kind and of the node; those of the node's administrator win.
func (c *Calculator) felix() model.FelixConfigurationSpec {
	if c.reader == nil {
		return felixconfig.Merge(model.NewSet(), c.config.Node, c.config.Felix)
	}
	return felixconfig.Merge(c.reader, c.config.Node, c.config.Felix)
}

func readSettings(f *model.FelixConfigurationSpec, c Config) settings {
	s := settings{
		prefixes: felixconfig.ParseInterfacePrefixes(f.InterfacePrefix), denyVerdict: ruleset.Drop, flowLog: c.FlowLog,
		noKernelLog: c.NoKernelLog, fragments: c.Fragments, trustOutside: c.TrustOutside,
		encrypted:   c.EncryptionRequired,
		keepInvalid: is(f.DisableConntrackInvalidCheck), spoofing: f.WorkloadSourceSpoofing == "Any",
		imitable:     overlay.Imitable(f),
		logPrefix:    cmp.Or(f.LogPrefix, "calico-packet"),
		natInterface: f.IptablesNATOutgoingInterfaceFilter,
		floating:     f.UsesFloatingIPs(),
		natHosts:     f.NATOutgoingExclusions != nil && *f.NATOutgoingExclusions == "IPPoolsAndHostIPs",
		failsafeIn:   failsafeList(f.FailsafeInboundHostPorts, defaultFailsafeIn),
		failsafeOut:  failsafeList(f.FailsafeOutboundHostPorts, defaultFailsafeOut),
	}
	s.excluded, s.bad = excludedBy(f)
	var badMarks string
	if s.marks, badMarks = MarksOf(f); badMarks != "" {
		s.bad = append(s.bad, badMarks)
	}
	if strings.EqualFold(cmp.Or(f.NftablesFilterDenyAction, f.IptablesFilterDenyAction), "Reject") {
		s.denyVerdict = ruleset.Reject
	}
	switch strings.ToLower(f.DefaultEndpointToHostAction) {
	case "accept", "return":
		s.toHost.Action = ruleset.Accept
	default:
		s.toHost.Action = s.denyVerdict
	}
	s.wireGuardPorts = []uint32{portOr(f.WireguardListeningPort, 51820), portOr(f.WireguardListeningPortV6, 51821)}
	s.logRate, s.logBurst = logRate, logBurst
	if f.LogActionRateLimit != nil {
		s.logBurst = 5
		s.logRate, s.logPer = rate(*f.LogActionRateLimit)
		if f.LogActionRateLimitBurst != nil && *f.LogActionRateLimitBurst > 0 {
			s.logBurst = uint32(*f.LogActionRateLimitBurst)
		}
	}
	if f.NATPortRange != nil {
		s.natPorts = [2]uint16{f.NATPortRange.MinPort, f.NATPortRange.MaxPort}
	}
	if a, err := netip.ParseAddr(f.NATOutgoingAddress); err == nil {
		s.natAddress = a
	}
	switch f.ServiceLoopPrevention {
	case "", "Drop":
		s.loop = ruleset.Drop
	case "Reject":
		s.loop = ruleset.Reject
	}
	return s
}

func portOr(configured *int, standard uint32) uint32 {
	if configured != nil && *configured > 0 && *configured <= 65535 {
		return uint32(*configured)
	}
	return standard
}

// A rule with the Log action logs so many packets a second if no setting says otherwise: a pod that sends without a
// pause would have the kernel's log written without a pause, too.
const (
	logRate  = 50
	logBurst = 50
)

func is(b *bool) bool { return b != nil && *b }

// rate parses "10/second", "10/minute" and the like; 0 for unreadable text. The default unit is the second.
func rate(text string) (uint64, ruleset.RateUnit) {
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
	if err != nil {
		return 0, 0
	}
	units := map[string]ruleset.RateUnit{"minute": ruleset.PerMinute, "hour": ruleset.PerHour, "day": ruleset.PerDay}
	return n, units[strings.TrimSuffix(strings.TrimSpace(unit), "s")]
}

func failsafeList(list *[]v3.ProtoPort, defaults string) []failsafe {
	var out []failsafe
	if list == nil {
		for _, text := range strings.Split(defaults, ",") {
			protocol, port, _ := strings.Cut(text, ":")
			n, _ := strconv.ParseUint(port, 10, 16)
			out = append(out, failsafe{protocol: protocols[protocol], port: uint16(n)})
		}
		return out
	}
	for _, p := range *list {
		f := failsafe{protocol: protocols[strings.ToLower(p.Protocol)], port: p.Port}
		if p.Net != "" {
			net, err := ParseNet(p.Net)
			if err != nil {
				continue
			}
			f.net = net
		}
		if f.protocol != 0 {
			out = append(out, f)
		}
	}
	return out
}

// failsafes are the rules for a host endpoint. Where connections are not tracked, replies need rules of their own.
func (s *settings) failsafes(p purpose) []ruleset.Rule {
	var rules []ruleset.Rule
	add := func(list []failsafe, address, port ruleset.Field, comment string) {
		for _, f := range list {
			var m []ruleset.Match
			if f.net.IsValid() {
				m = append(m, familyOf(f.net), ruleset.Match{Field: address, Prefix: f.net})
			}
			m = append(m, ruleset.Match{Field: ruleset.Protocol, Low: uint32(f.protocol)},
				ruleset.Match{Field: port, Low: uint32(f.port)})
			rules = append(rules, ruleset.Rule{Matches: m, Verdict: accept, Comment: comment})
		}
	}
	if p.in() {
		add(s.failsafeIn, ruleset.Source, ruleset.DestinationPort, "failsafe")
		if p.untracked() {
			add(s.failsafeOut, ruleset.Source, ruleset.SourcePort, "failsafe, replies")
		}
		return rules
	}
	add(s.failsafeOut, ruleset.Destination, ruleset.DestinationPort, "failsafe")
	if p.untracked() {
		add(s.failsafeIn, ruleset.Destination, ruleset.SourcePort, "failsafe, replies")
	}
	return rules
}

// deny is the rule by which policy drops packets.
func (s *settings) deny(comment string, why Reason, p purpose) ruleset.Rule {
	r := ruleset.Rule{Verdict: ruleset.Verdict{Action: s.denyVerdict}, Comment: comment, CountedBy: why.Counter()}
	if p.untracked() || p == preDNAT {
		r.Verdict.Action = ruleset.Drop
	}
	r.Log = s.dropLog(comment)
	return r
}

// drop is a rule that drops packets whatever the settings are.
func (s *settings) drop(comment string, why Reason, m ...ruleset.Match) ruleset.Rule {
	return ruleset.Rule{Matches: m, Verdict: ruleset.Verdict{Action: ruleset.Drop}, Comment: comment,
		Log: s.dropLog(comment), CountedBy: why.Counter()}
}

// noReturnRoute drops packets whose source is not routed to where they come from.
func (s *settings) noReturnRoute() ruleset.Rule {
	return s.drop(spoofed, droppedSource, ruleset.Match{Field: ruleset.NoReturnRoute})
}

const spoofed = "the source is not this workload's"

// tunnelsFromWorkloads keeps workloads from sending packets that look like the tunnels' between nodes.
func (s *settings) tunnelsFromWorkloads() []ruleset.Rule {
	var rules []ruleset.Rule
	for _, p := range s.imitable {
		if !p.FromWorkloads {
			rules = append(rules, ruleset.Rule{Matches: matchesOf(p),
				Verdict: ruleset.Verdict{Action: ruleset.Drop}, Comment: p.Name + " from a workload",
				CountedBy: droppedTunnel.Counter()})
		}
	}
	return rules
}

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func familyOf(p netip.Prefix) ruleset.Match { return ofFamily(families[index(p)]) }

var families = []uint32{4, 6}

func ofFamily(family uint32) ruleset.Match { return ruleset.Match{Field: ruleset.Family, Low: family} }

// ofSet matches an address that is in the set for a family.
func ofSet(family uint32, f ruleset.Field, set string) []ruleset.Match {
	return []ruleset.Match{ofFamily(family), {Field: f, Set: set + fmt.Sprint(family)}}
}

// ownNode returns the Node of this host, nil if there is none.
func (c *Calculator) ownNode() *model.Node {
	if c.reader == nil {
		return nil
	}
	return model.Get[model.Node](c.reader, model.ResourceKey(model.KindNode, c.config.Node))
}

// systemSets writes the sets that depend on the settings.
func (c *Calculator) systemSets(f *model.FelixConfigurationSpec) {
	var pools, masquerade, loop [2][]netip.Prefix
	var table ippool.Table
	put := func(list *[2][]netip.Prefix, p netip.Prefix) { list[index(p)] = append(list[index(p)], p) }
	if c.reader != nil {
		for k, p := range model.All[model.IPPool](c.reader, model.KindIPPool) {
			pool, err := ippool.Parse(k.Name, &p.Spec)
			if err != nil {
				continue
			}
			c.settings.ipv6 = c.settings.ipv6 || pool.CIDR.Addr().Is6()
			table = append(table, pool)
			if ippool.ForLoadBalancers(&p.Spec) {
				continue
			}
			put(&pools, pool.CIDR)
			if p.Spec.NATOutgoing {
				put(&masquerade, pool.CIDR)
			}
		}
		if b := model.Get[model.BGPConfiguration](c.reader, model.ResourceKey(model.KindBGPConfiguration,
			"default")); b != nil {
			for _, p := range serviceNets(b) {
				put(&loop, p)
			}
		}
	}
	c.settings.services = [2]bool{len(loop[0]) > 0, len(loop[1]) > 0}
	c.settings.tunnels = tunnelsOf(c.config.Overlays, f, table)
	c.settings.hostTunnels = hostTunnelsOf(f, c.ownNode())
	var external []netip.Prefix
	if f.ExternalNodesCIDRList != nil {
		external = parseNets(*f.ExternalNodesCIDRList)
	}
	c.nodes.set("", external)
	for _, s := range []struct {
		name    string
		nets    [2][]netip.Prefix
		comment string
	}{
		{poolsSet, pools, "all IP pools"}, {masqueradeSet, masquerade, "IP pools with natOutgoing"},
		{loopSet, loop, "addresses of services"},
	} {
		addSets(c.table.Table, s.name, s.comment, true, ClusterSet)
		for i, family := range families {
			c.table.fill(s.name+fmt.Sprint(family), elementsOf(members.Reduce(s.nets[i])))
		}
	}
	c.table.AddSet(ruleset.Set{Name: nodePortsSet, Type: ruleset.Ports, Interval: true,
		Comment: "ports of BFD and of tunnels between nodes", Origin: ClusterSet})
	var ports []ruleset.Element
	for _, port := range nodePorts {
		ports = append(ports, portElement(port))
	}
	for _, p := range c.settings.imitable {
		if p.Port != 0 {
			ports = append(ports, portElement(p.Port))
		}
	}
	c.table.fill(nodePortsSet, ports)
}

// nodePorts are the UDP ports of BFD (RFC 5881, its echo, RFC 5883, RFC 7130), VXLAN (RFC 7348, and Linux' own) and
// Geneve (RFC 8926).
var nodePorts = []uint16{3784, 3785, 4784, 6784, 4789, 8472, 6081}

// nodeNets are the addresses of all nodes in the table, by the name of the node; "" has those that settings add. The
// cost of a change is that of one node.
type nodeNets struct {
	members *members.Set
	of      map[string][]netip.Prefix
	// tunnels are addresses of nodes, too; no set has them. count says how many nodes have an address of either list.
	tunnels map[string][]netip.Prefix
	count   map[netip.Prefix]int
}

func newNodeNets(t *ruleset.Table) nodeNets {
	return newAddressNets(t, hostsSet, "addresses of all nodes", true, ClusterSet)
}

// newAddressNets makes a set for each family; without interval the networks are single addresses.
func newAddressNets(t *ruleset.Table, name, comment string, interval bool, origin SetOrigin) nodeNets {
	addSets(t, name, comment, interval, origin)
	both := bothSets{{t, name + "4"}, {t, name + "6"}}
	return nodeNets{members: members.New(interval, both), of: map[string][]netip.Prefix{},
		tunnels: map[string][]netip.Prefix{}, count: map[netip.Prefix]int{}}
}

func addSets(t *ruleset.Table, name, comment string, interval bool, origin SetOrigin) {
	for i, kind := range []ruleset.SetType{ruleset.Addresses4, ruleset.Addresses6} {
		t.AddSet(ruleset.Set{Name: name + fmt.Sprint(families[i]), Type: kind, Interval: interval, Comment: comment,
			Origin: origin})
	}
}

// bothSets are the elements of a set for IPv4 and of one for IPv6.
type bothSets [2]tableSet

func (s bothSets) Add(e ruleset.Element)      { s[index(e.Prefix)].Add(e) }
func (s bothSets) Remove(e ruleset.Element)   { s[index(e.Prefix)].Remove(e) }
func (s bothSets) Has(e ruleset.Element) bool { return s[index(e.Prefix)].Has(e) }

// set replaces the networks of one node. New ones come first, so that those that stay are not touched.
func (n *nodeNets) set(name string, nets []netip.Prefix) {
	before := n.of[name]
	if slices.Equal(before, nets) {
		return
	}
	for _, p := range nets {
		n.members.Add(ruleset.Element{Prefix: p})
	}
	for _, p := range before {
		n.members.Remove(ruleset.Element{Prefix: p})
	}
	n.replace(n.of, name, nets)
}

// replace sets one node's addresses in one of the lists.
func (n *nodeNets) replace(list map[string][]netip.Prefix, name string, nets []netip.Prefix) {
	for _, p := range list[name] {
		if n.count[p]--; n.count[p] == 0 {
			delete(n.count, p)
		}
	}
	for _, p := range nets {
		n.count[p]++
	}
	if list[name] = nets; len(nets) == 0 {
		delete(list, name)
	}
}

// takeNode enters the addresses of a node; nil is gone.
func (c *Calculator) takeNode(name string, n *model.Node) {
	var nets, tunnels []netip.Prefix
	if n != nil {
		for _, a := range n.Addresses() {
			nets = append(nets, hostPrefix(a))
		}
	}
	for _, t := range n.TunnelAddresses() {
		tunnels = append(tunnels, hostPrefix(t.Address))
	}
	c.nodes.set(name, nets)
	c.nodes.replace(c.nodes.tunnels, name, tunnels)
}

// bgpPorts are the ports on which nodes of the cluster and their peers may listen for BGP, by the BGPConfiguration or
// BGPPeer that sets them. The cost of a change is that of one port.
type bgpPorts struct {
	members *members.Set
	of      map[model.Key]uint16
}

// bgpPort is the port of RFC 4271, for nodes without a listenPort.
const bgpPort = 179

func newBGPPorts(t *ruleset.Table) bgpPorts {
	t.AddSet(ruleset.Set{Name: bgpPortsSet, Type: ruleset.Ports, Interval: true,
		Comment: "BGP ports of nodes and peers", Origin: ClusterSet})
	p := bgpPorts{members: members.New(false, tableSet{t, bgpPortsSet}), of: map[model.Key]uint16{}}
	p.members.Add(portElement(bgpPort))
	return p
}

func portElement(port uint16) ruleset.Element { return ruleset.Element{Low: port, High: port} }

// listenPort is the port that a BGPConfiguration of the cluster or of a node sets, 0 for none.
func listenPort(name string, b *model.BGPConfiguration) uint16 {
	if b != nil && (name == "default" || strings.HasPrefix(name, "node.")) {
		return b.Spec.ListenPort
	}
	return 0
}

// peerPort is the port of a BGPPeer's peerIP, 0 for none.
func peerPort(p *model.BGPPeer) uint16 {
	if p == nil {
		return 0
	}
	peer, _ := model.ParsePeerIP(p.Spec.PeerIP) // no port if it cannot be parsed
	return peer.Port()
}

// take enters the port that an object sets; 0 for none.
func (p *bgpPorts) take(k model.Key, port uint16) {
	before := p.of[k]
	if port == before {
		return
	}
	if before != 0 {
		p.members.Remove(portElement(before))
		delete(p.of, k)
	}
	if port != 0 {
		p.members.Add(portElement(port))
		p.of[k] = port
	}
}

func serviceNets(b *model.BGPConfiguration) []netip.Prefix {
	var texts []string
	for _, s := range b.Spec.ServiceClusterIPs {
		texts = append(texts, s.CIDR)
	}
	for _, s := range b.Spec.ServiceExternalIPs {
		texts = append(texts, s.CIDR)
	}
	for _, s := range b.Spec.ServiceLoadBalancerIPs {
		texts = append(texts, s.CIDR)
	}
	return parseNets(texts)
}

// settleSettings reads the settings again if they may have changed.
func (c *Calculator) settleSettings() {
	if !c.settings.dirty {
		return
	}
	c.settings.dirty = false
	f := c.felix()
	before, prefixes := fmt.Sprint(c.settings.settings), c.settings.prefixes
	c.settings.settings = readSettings(&f, c.config)
	if !slices.Equal(prefixes, c.settings.prefixes) {
		for iface := range c.endpoints.interfaces { // it may be a workload's now, or no more
			c.endpoints.claims.add(iface)
		}
	}
	key := model.ResourceKey(model.KindFelixConfiguration, "default")
	if delete(c.bad, key); c.settings.bad != nil {
		c.bad[key] = strings.Join(c.settings.bad, "; ")
	}
	c.systemSets(&f)
	c.settings.changed = fmt.Sprint(c.settings.settings) != before
	c.hosts.dirty = true
	c.writeBase()
	if c.settings.changed {
		c.sets.allowance = unlimited
	}
}
