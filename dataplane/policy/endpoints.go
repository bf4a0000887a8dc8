package policy

import (
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// endpoints are this node's: of workloads and of the host.
type endpoints struct {
	settings   *settings
	of         map[model.Key]*endpoint
	interfaces map[string][]*endpoint           // of workloads: the claimants of each
	addresses  nodeNets                         // of workloads, by the name of the workload
	limited    map[Limit]bool                   // workloads without new connections
	routers    map[model.Key]*selector.Selector // of BGPPeers, see routesForOthers
	dirty      dirty[*endpoint]
	claims     dirty[string] // interfaces with other claimants
}

func newEndpoints(t *ruleset.Table, s *settings) endpoints {
	return endpoints{settings: s, of: map[model.Key]*endpoint{}, interfaces: map[string][]*endpoint{},
		routers:   map[model.Key]*selector.Selector{},
		addresses: newAddressNets(t, localSet, "addresses of workloads of this node", false, EndpointSet)}
}

// hosts visits those of the host.
func (s *endpoints) hosts() iter.Seq[*endpoint] {
	return func(yield func(*endpoint) bool) {
		for _, e := range s.of {
			if e.host != nil && !yield(e) {
				return
			}
		}
	}
}

// touch has the endpoints of a policy settled.
func (s *endpoints) touch(p *policyState) {
	for e := range p.endpoints {
		s.dirty.add(e)
	}
}

// endpoint is one of this node's: a workload's or a host's.
type endpoint struct {
	key      model.Key
	workload *model.Workload // one of them is set
	host     *v3.HostEndpoint
	profiles []string
	policies map[*policyState]bool
	held     map[*policyState]bool // profiles that know of it
	lists    []*list
	iface    string // in the maps under this name
	labels   map[string]string
	own      []string
}

// takeEndpoint enters a new version of an endpoint.
func (c *Calculator) takeEndpoint(now *endpoint, labels map[string]string) {
	e := c.endpoints.of[now.key]
	if e == nil {
		e = &endpoint{key: now.key, policies: map[*policyState]bool{}, held: map[*policyState]bool{}}
		c.endpoints.of[now.key] = e
	}
	if e.workload != nil && now.workload != nil && e.workload.Interface != now.workload.Interface {
		c.endpoints.unclaim(e.workload.Interface, e)
	}
	c.translated.dirty = c.translated.dirty || floats(e) || floats(now)
	e.workload, e.host, e.profiles, e.labels = now.workload, now.host, now.profiles, labels
	c.holdProfiles(e)
	c.subjects.SetItem(e, labels, now.profiles)
	c.endpoints.dirty.add(e)
	if e.workload != nil {
		c.endpoints.claim(e.workload.Interface, e)
	} else {
		c.hosts.dirty = true
		dscp, addresses, _ := dscpOfHost(e.host)
		c.dscps.set(e.key, dscp, addresses)
	}
}

func floats(e *endpoint) bool { return e.workload != nil && len(e.workload.IPNATs) > 0 }

// holdProfiles makes the endpoint's profiles needed.
func (c *Calculator) holdProfiles(e *endpoint) {
	now := map[*policyState]bool{}
	for _, name := range e.profiles {
		p := c.policies.profile(name)
		now[p] = true
		p.join(e)
		c.policies.dirty.add(p)
	}
	for p := range e.held {
		if !now[p] {
			delete(p.endpoints, e)
			c.policies.dirty.add(p)
		}
	}
	e.held = now
}

func (c *Calculator) dropEndpoint(k model.Key) {
	e := c.endpoints.of[k]
	if e == nil {
		return
	}
	e.profiles = nil
	c.translated.dirty = c.translated.dirty || floats(e)
	c.holdProfiles(e)
	c.subjects.DeleteItem(e)
	delete(c.endpoints.of, k)
	delete(c.bad, k)
	delete(c.endpoints.dirty, e)
	if e.workload != nil {
		c.endpoints.unclaim(e.workload.Interface, e)
		c.withdraw(e)
	} else {
		c.hosts.dirty = true
		c.dscps.set(k, ruleset.DSCP{}, nil)
	}
	c.lists.use(e, nil)
}

// claim lets an endpoint claim an interface. If several do, the first one by key has it, the others wait.
func (s *endpoints) claim(iface string, e *endpoint) {
	if list := s.interfaces[iface]; !slices.Contains(list, e) {
		s.interfaces[iface] = append(list, e)
		slices.SortFunc(s.interfaces[iface], compareEndpoints)
	}
	s.claims.add(iface)
}

func (s *endpoints) unclaim(iface string, e *endpoint) {
	s.interfaces[iface] = slices.DeleteFunc(s.interfaces[iface], func(x *endpoint) bool { return x == e })
	if len(s.interfaces[iface]) == 0 {
		delete(s.interfaces, iface)
	}
	s.claims.add(iface)
}

// settleClaims determines the owner of each interface whose claims changed.
func (c *Calculator) settleClaims() {
	for iface := range c.endpoints.claims {
		claimants, refused := c.endpoints.interfaces[iface], c.settings.prefixes.Refuse(iface)
		for i, e := range claimants {
			switch {
			case refused != "":
				c.bad[e.key] = refused
				c.withdraw(e)
			case i == 0:
				delete(c.bad, e.key)
				if q := e.workload.QoSControls; q != nil && q.DSCP != "" {
					if _, ok := parseDSCP(q.DSCP); !ok {
						c.bad[e.key] = fmt.Sprintf("dscp of its qosControls, %q, is not one and is left out", q.DSCP)
					}
				}
			default:
				c.bad[e.key] = "its interface " + iface + " is also that of " + claimants[0].key.String() +
					", which comes first"
				c.withdraw(e)
			}
			c.endpoints.dirty.add(e)
		}
	}
	c.endpoints.claims = nil
}

// Strays returns the interfaces that endpoints of this node name and that begin with no prefix of workloads'
// interfaces, in order: they have no rules.
func (c *Calculator) Strays() (list []string) {
	for iface := range c.endpoints.interfaces {
		if c.settings.prefixes.Stray(iface) {
			list = append(list, iface)
		}
	}
	slices.Sort(list)
	return list
}

// Unprotected returns why a workload of this node may be without rules although its interface exists, empty if none is.
// An interface with an address that is not link-local is the host's own.
func (c *Calculator) Unprotected() string {
	text, more := "", 0
	for _, iface := range c.Strays() {
		addresses, exists := c.hosts.links[iface]
		if !exists || slices.ContainsFunc(addresses, func(a netip.Addr) bool { return !a.IsLinkLocalUnicast() }) {
			continue
		}
		if more++; more == 1 {
			text = fmt.Sprintf("%s has no policy: its interface %s exists and does not begin with %s "+
				"(interfacePrefix of %s)", c.endpoints.interfaces[iface][0].key, iface, c.settings.prefixes,
				felixconfig.PrefixSource(c.reader, c.config.Node, c.config.Felix))
		}
	}
	if more > 1 {
		text += fmt.Sprintf(", nor have %d more endpoints", more-1)
	}
	return text
}

// owner is the endpoint that has the interface. An interface of no workload has none.
func (s *endpoints) owner(iface string) *endpoint {
	if claimants := s.interfaces[iface]; len(claimants) > 0 && s.settings.prefixes.Refuse(iface) == "" {
		return claimants[0]
	}
	return nil
}

// settleEndpoints gives every workload that changed its lists of policies.
func (c *Calculator) settleEndpoints() {
	if c.settings.changed {
		for _, e := range c.endpoints.of {
			c.endpoints.dirty.add(e)
		}
	}
	// First all leave the interfaces that they no longer have: one may take over the interface of another.
	for e := range c.endpoints.dirty {
		if e.workload != nil && e.iface != e.workload.Interface {
			c.withdraw(e)
		}
	}
	for e := range c.endpoints.dirty {
		if e.workload != nil {
			c.settleWorkload(e)
		}
	}
	c.endpoints.dirty = nil
}

func compareEndpoints(a, b *endpoint) int { return a.key.Compare(b.key) }

func (c *Calculator) settleWorkload(e *endpoint) {
	iface := e.workload.Interface
	if c.endpoints.owner(iface) != e {
		return
	}
	in, out := c.listFor(e, normalIn), c.listFor(e, normalOut)
	c.lists.use(e, []*list{in, out})
	q := e.workload.QoSControls
	var own []string
	write := func(chain *ruleset.Chain) string {
		c.table.SetChain(chain)
		own = append(own, chain.Name)
		return chain.Name
	}
	enter := func(m string, l *list, r rates) {
		target := l.name
		if c.endpoints.limited[Limit{iface, m == toWorkload}] {
			target = write(c.settings.limitedChain(m, iface, target))
		}
		for _, chain := range r.chains(m, iface, target) {
			target = write(chain)
		}
		c.table.SetVerdict(m, iface, goTo(target))
	}
	if q == nil {
		q = &model.QoSControls{}
	}
	enter(toWorkload, in, rates{q.IngressPacketRate, q.IngressPacketBurst, q.IngressMaxConnections})
	enter(fromWorkload, out, rates{q.EgressPacketRate, q.EgressPacketBurst, q.EgressMaxConnections})
	special := func(m string, chain *ruleset.Chain) { // nil: as for an interface that the map does not have
		v := ruleset.Verdict{}
		if chain != nil {
			v = goTo(write(chain))
		}
		c.table.SetVerdict(m, iface, v)
	}
	special(sourceCheck, c.spoofing(e, iface))
	c.table.SetVerdict(neighbourMap, iface, jump(write(neighbourChain(iface))))
	special(early, c.settings.earlyLimits(iface))
	addresses := singleAddresses(e.workload)
	c.endpoints.addresses.set(e.key.String(), addresses)
	var errors *ruleset.Chain
	if !c.endpoints.routesForOthers(e) {
		errors = c.settings.errorsChain(iface, addresses)
	}
	special(errorsMap, errors)
	dscp, _ := parseDSCP(q.DSCP)
	c.dscps.set(e.key, dscp, addresses)
	for _, name := range e.own {
		if !slices.Contains(own, name) {
			c.table.DeleteChain(name)
		}
	}
	e.iface, e.own = iface, own
}

func singleAddresses(w *model.Workload) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(w.Networks), func(p netip.Prefix) bool { return !p.IsSingleIP() })
}

// takeRouters enters the localWorkloadSelector of a BGPPeer; nil is gone.
func (s *endpoints) takeRouters(k model.Key, p *model.BGPPeer) {
	var now *selector.Selector
	if p != nil && p.Spec.LocalWorkloadSelector != "" {
		now, _ = selector.Parse(p.Spec.LocalWorkloadSelector) // an invalid one selects none
	}
	before := s.routers[k]
	if before == nil && now == nil || before != nil && now != nil && before.String() == now.String() {
		return
	}
	if s.routers[k] = now; now == nil {
		delete(s.routers, k)
	}
	for _, e := range s.of {
		if e.workload != nil {
			s.dirty.add(e)
		}
	}
}

// routesForOthers reports whether a workload sends ICMP errors about connections of others as every router does: it
// may send from other addresses, or announces routes to its node.
func (s *endpoints) routesForOthers(e *endpoint) bool {
	if s.settings.spoofing && len(e.workload.AllowSpoofedSourcePrefixes) > 0 {
		return true
	}
	if len(s.routers) == 0 {
		return false
	}
	labels := map[string]string{model.LabelNamespace: e.key.Namespace,
		model.LabelOrchestrator: e.workload.Orchestrator}
	maps.Copy(labels, e.labels)
	for _, router := range s.routers {
		if router.Matches(labels) {
			return true
		}
	}
	return false
}

// withdraw takes a workload out of the maps: its traffic in both directions is dropped from then on.
func (c *Calculator) withdraw(e *endpoint) {
	if e.iface == "" {
		return
	}
	for _, m := range []string{toWorkload, fromWorkload, sourceCheck, neighbourMap, early, errorsMap} {
		c.table.SetVerdict(m, e.iface, ruleset.Verdict{})
	}
	for _, name := range e.own {
		c.table.DeleteChain(name)
	}
	c.endpoints.addresses.set(e.key.String(), nil)
	c.dscps.set(e.key, ruleset.DSCP{}, nil)
	e.iface, e.own = "", nil
	c.lists.use(e, nil)
}

// rates are the limits of one endpoint in one direction; 0 for none.
type rates struct {
	packets, burst int64 // a second
	connections    int64
}

// chains are those that check the rates of an endpoint before its policies, the last one of them first. None without
// limits. The counting rules are in a chain of their own: the kernel counts anew when a chain is written again, as it
// is when policies change.
func (l rates) chains(direction, iface, next string) []*ruleset.Chain {
	limits := &ruleset.Chain{Name: "limits-" + direction + "/" + iface}
	add := func(over ruleset.Limit, a ruleset.Action, why Reason, comment string, m ...ruleset.Match) {
		limits.Rules = append(limits.Rules, ruleset.Rule{Matches: m, Over: over, Verdict: ruleset.Verdict{Action: a},
			CountedBy: why.Counter(), Comment: comment})
	}
	if l.packets > 0 {
		burst := l.burst
		if burst <= 0 {
			burst = 5
		}
		over := ruleset.Limit{Packets: uint64(l.packets), Burst: uint32(min(burst, model.QoSRanges.PacketBurst.Most))}
		add(over, ruleset.Drop, droppedPacketRate, "packet rate limit")
	}
	if l.connections > 0 {
		over := ruleset.Limit{Connections: uint32(min(l.connections, model.QoSRanges.MaxConnections.Most))}
		limits.Rules = append(limits.Rules, ruleset.Rule{Matches: []ruleset.Match{established},
			Verdict: ruleset.Verdict{Action: ruleset.Return}})
		add(over, ruleset.RejectTCP, droppedConnection, "connection limit",
			ruleset.Match{Field: ruleset.Protocol, Low: protoTCP})
		add(over, ruleset.Drop, droppedConnection, "connection limit")
	}
	if limits.Rules == nil {
		return nil
	}
	return []*ruleset.Chain{limits, {Name: "qos-" + direction + "/" + iface, Rules: []ruleset.Rule{
		{Verdict: jump(limits.Name)}, {Verdict: goTo(next)}}}}
}

// spoofing lets a workload send from the prefixes that it is allowed to pretend to.
func (c *Calculator) spoofing(e *endpoint, iface string) *ruleset.Chain {
	if len(e.workload.AllowSpoofedSourcePrefixes) == 0 || !c.settings.spoofing {
		return nil
	}
	chain := &ruleset.Chain{Name: "source/" + iface}
	for _, p := range parseNets(e.workload.AllowSpoofedSourcePrefixes) {
		chain.Rules = append(chain.Rules, ruleset.Rule{
			Matches: []ruleset.Match{familyOf(p), {Field: ruleset.Source, Prefix: p}}, Verdict: accept,
			Comment: "allowed source prefix"})
	}
	chain.Rules = append(chain.Rules, c.settings.noReturnRoute())
	return chain
}
