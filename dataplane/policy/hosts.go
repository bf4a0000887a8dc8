package policy

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// hosts has the interfaces of this host, and the objects written for host endpoints: none while there are none.
type hosts struct {
	links    map[string][]netip.Addr    // interfaces and their addresses
	verdicts map[string]map[string]bool // interfaces in each map
	written  bool
	dirty    bool
}

// hostStage is one place where host endpoints' policies are evaluated.
type hostStage struct {
	name    string // of the base chain and of its map
	purpose purpose
	base    *ruleset.Base
	// all: the wildcard matches the interfaces of workloads, too, as in Calico.
	all bool
	// own: only interfaces with an endpoint of their own, not those that a wildcard matches.
	own bool
	out bool
}

var hostStages = []hostStage{
	{name: "host-untracked-in", purpose: untrackedIn, base: base(ruleset.Prerouting, -299), own: true},
	{name: "host-untracked-out", purpose: untrackedOut, base: base(ruleset.Output, -300), own: true, out: true},
	{name: "host-pre-dnat", purpose: preDNAT, base: base(ruleset.Prerouting, -150), all: true},
	{name: "host-in", purpose: normalIn, base: base(ruleset.Input, 0)},
	{name: "host-out", purpose: normalOut, base: base(ruleset.Output, 0), out: true},
	// Traffic of the host to a service has its real destination only after translation.
	{name: "host-out-translated", purpose: normalOut, base: base(ruleset.Postrouting, -150), out: true},
	{name: "host-forward-in", purpose: forwardIn, base: base(ruleset.Forward, -1), all: true},
	{name: "host-forward-out", purpose: forwardOut, base: base(ruleset.Forward, 2), all: true, out: true},
}

// matchHosts finds the host endpoint of each interface: by the interface's name, or by one of its addresses for one
// that names no interface. If several match, the first one by name has it. The wildcard "*" stands for all other
// interfaces, and those of interfaceExclude are among them.
func (c *Calculator) matchHosts() (own map[string]*endpoint, all *endpoint) {
	own = map[string]*endpoint{}
	excluded := c.settings.excluded.matcher()
	for _, e := range slices.SortedFunc(c.endpoints.hosts(), compareEndpoints) {
		delete(c.bad, e.key)
		if _, _, problem := dscpOfHost(e.host); problem != "" {
			c.bad[e.key] = problem
		}
		if e.host.Spec.InterfaceName == model.AllInterfaces {
			if all == nil {
				all = e
			} else {
				c.bad[e.key] = `"*" is also ` + all.key.String() + "'s, which comes first"
			}
			continue
		}
		if name := e.host.Spec.InterfaceName; name != "" && excluded(name) {
			c.bad[e.key] = "interfaceExclude of FelixConfiguration excludes " + name
			continue
		}
		matched := false
		for iface, addrs := range c.hosts.links {
			if iface == "lo" || excluded(iface) || c.settings.isWorkload(iface) || !matchesHost(e, iface, addrs) {
				continue
			}
			matched = true
			if own[iface] == nil {
				own[iface] = e
			}
		}
		if !matched {
			c.bad[e.key] = "it selects no interface of this host"
			if name := e.host.Spec.InterfaceName; name != "" {
				// It will be there before its policy is needed.
				if own[name] == nil && !c.settings.isWorkload(name) {
					own[name] = e
				}
			}
		}
	}
	return own, all
}

func (s *settings) isWorkload(iface string) bool { return s.prefixes.Match(iface) }

func matchesHost(e *endpoint, iface string, addrs []netip.Addr) bool {
	if name := e.host.Spec.InterfaceName; name != "" {
		return name == iface
	}
	for _, text := range e.host.Spec.ExpectedIPs {
		if a, err := netip.ParseAddr(text); err == nil && slices.Contains(addrs, a.Unmap()) {
			return true
		}
	}
	return false
}

// settleHosts writes the stages for host endpoints again if one of them, or an interface, changed.
func (c *Calculator) settleHosts() {
	for e := range c.endpoints.dirty {
		c.hosts.dirty = c.hosts.dirty || e.host != nil
	}
	if !c.hosts.dirty {
		return
	}
	c.hosts.dirty = false
	own, all := c.matchHosts()
	if len(own) == 0 && all == nil {
		c.clearHosts()
		return
	}
	for _, chain := range discoveryChains() {
		c.table.SetChain(chain)
	}
	used := map[*endpoint][]*list{}
	get := func(e *endpoint, p purpose) *list {
		l := c.listFor(e, p)
		used[e] = append(used[e], l)
		return l
	}
	for _, stage := range hostStages {
		c.table.AddMap(ruleset.Map{Name: stage.name})
		want := map[string]bool{}
		for iface, e := range own {
			c.table.SetVerdict(stage.name, iface, goTo(get(e, stage.purpose).name))
			want[iface] = true
		}
		for iface := range c.hosts.verdicts[stage.name] {
			if !want[iface] {
				c.table.SetVerdict(stage.name, iface, ruleset.Verdict{})
			}
		}
		c.hosts.verdicts[stage.name] = want
		var rest *list
		if all != nil && !stage.own {
			rest = get(all, stage.purpose)
		}
		c.table.SetChain(c.stageChain(stage, rest))
	}
	for e := range c.endpoints.hosts() {
		c.lists.use(e, used[e])
	}
	c.hosts.written = true
}

// origin returns the origin of the base chain.
func (s hostStage) origin() Stage {
	o := Stage{Subject: InInterface}
	if s.out {
		o.Subject = OutInterface
	}
	switch {
	case s.purpose.untracked():
		o.Option = "doNotTrack"
	case s.purpose == preDNAT:
		o.Option = "preDNAT"
	case s.purpose.forward():
		o.Option = "applyOnForward"
	}
	return o
}

// stageChain sends packets to the lists of their interface's endpoint.
func (c *Calculator) stageChain(s hostStage, rest *list) *ruleset.Chain {
	chain := &ruleset.Chain{Name: s.name, Base: s.base, Origin: s.origin()}
	field, decided := ruleset.InInterface, c.settings.marks.Decided
	if s.out {
		field = ruleset.OutInterface
	}
	skip := func(m ...ruleset.Match) { chain.Rules = append(chain.Rules, ruleset.Rule{Matches: m, Verdict: accept}) }
	switch s.name {
	case "host-untracked-in", "host-untracked-out":
		// The mark is given here and in host-pre-dnat only.
		chain.Rules = append(chain.Rules, ruleset.Rule{Mark: ruleset.Mark{Mask: decided}})
	case "host-pre-dnat":
		skip(marked(decided))
	case "host-in", "host-out", "host-forward-in":
		// A packet that leaves in a tunnel would hand the mark on to the packet around it.
		chain.Rules = append(chain.Rules, ruleset.Rule{Matches: []ruleset.Match{marked(decided)},
			Mark: ruleset.Mark{Mask: decided}, Verdict: accept,
			Comment: "allowed by an untracked or pre-DNAT policy"})
	}
	skip(ruleset.Match{Field: field, Name: "lo"})
	if !s.purpose.forward() {
		discovery := hostDiscovery
		if s.base.Hook == ruleset.Prerouting {
			discovery = hostDiscoveryEarly
		}
		chain.Rules = append(chain.Rules, toNeighbours(discovery))
	}
	if !s.all {
		for _, p := range c.settings.prefixes {
			skip(ruleset.Match{Field: field, Name: p + "*"})
		}
	}
	switch s.name {
	case "host-in":
		c.settings.skipTunnels(skip, ruleset.Source, ruleset.DestinationLocal)
	case "host-out":
		c.settings.skipTunnels(skip, ruleset.Destination, ruleset.SourceLocal)
		skip(ruleset.Match{Field: ruleset.ConnStatus, Mask: ruleset.ConnDNAT})
	case "host-out-translated":
		// An untracked packet is not translated, and has no status to match.
		skip(ruleset.Match{Field: ruleset.ConnState, Mask: ruleset.ConnInvalid | ruleset.ConnUntracked})
		skip(ruleset.Match{Field: ruleset.ConnStatus, Not: true, Mask: ruleset.ConnDNAT})
		skip(ruleset.Match{Field: ruleset.SourceLocal, Not: true})
	}
	chain.Rules = append(chain.Rules, ruleset.Rule{
		Verdict: ruleset.Verdict{Action: ruleset.Lookup, Map: s.name, Out: s.out}})
	if rest != nil {
		chain.Rules = append(chain.Rules, ruleset.Rule{
			Verdict: goTo(rest.name)})
	}
	return chain
}

// Chains that accept discovery: of packets for this host and from it, and of packets that may not be for this host.
const (
	hostDiscovery      = "host-discovery"
	hostDiscoveryEarly = "host-discovery-early"
)

// discoveryChains let discovery pass, and nothing that only has its ICMPv6 type and would be forwarded.
func discoveryChains() []*ruleset.Chain {
	rest, early := &ruleset.Chain{Name: hostDiscovery}, &ruleset.Chain{Name: hostDiscoveryEarly}
	for _, kind := range discovery {
		rest.Rules = append(rest.Rules, ruleset.Rule{Matches: ofDiscovery(kind),
			Verdict: accept, Comment: discoveryComment})
	}
	for _, to := range []ruleset.Match{
		{Field: ruleset.Destination, Prefix: netip.MustParsePrefix("fe80::/10")},
		{Field: ruleset.Destination, Prefix: netip.MustParsePrefix("ff00::/8")}, {Field: ruleset.DestinationLocal},
	} {
		early.Rules = append(early.Rules, ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.Family, Low: 6}, to},
			Verdict: goTo(rest.Name)})
	}
	return []*ruleset.Chain{rest, early}
}

// discovery is by which ICMPv6 packets neighbours, routers and groups find each other (RFC 4861, RFC 2710, RFC 3810).
// Like ARP, it is not up to policy: a host endpoint without a policy for it would lose all neighbours, and failsafe
// ports with them.
var discovery = []uint32{130, 131, 132, 133, 134, 135, 136, 143}

// skipTunnels lets the nodes' packets between each other pass, in which those of workloads travel: a policy that is
// about the hosts would cut the workloads off.
func (s *settings) skipTunnels(skip func(...ruleset.Match), other, own ruleset.Field) {
	for _, t := range s.tunnels {
		if t.used {
			skip(t.matches(append([]ruleset.Match{{Field: own}}, t.senders(other)...)...)...)
		}
	}
}

func (c *Calculator) clearHosts() {
	if !c.hosts.written {
		return
	}
	for _, s := range hostStages {
		c.table.DeleteChain(s.name)
		c.table.DeleteMap(s.name)
	}
	for _, chain := range discoveryChains() {
		c.table.DeleteChain(chain.Name)
	}
	for e := range c.endpoints.hosts() {
		c.lists.use(e, nil)
	}
	c.hosts.written = false
	clear(c.hosts.verdicts)
}
