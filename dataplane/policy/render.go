package policy

import (
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/dataplane/policy/members"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/selector"
)

// render writes the chain of a policy for one direction, nil if it has none. A packet that no rule decides about comes
// back to the list.
func (c *Calculator) render(p *policyState, in bool) *ruleset.Chain {
	chain := &ruleset.Chain{Name: ChainName(p.id, in), Origin: ChainOf{ID: p.id, Ingress: in}}
	if p.Policy == nil {
		chain.Rules = []ruleset.Rule{c.denial(p, in, droppedUnusable, p.id.String()+" does not exist")}
		return chain
	}
	d := p.Direction(in)
	if !d.Applies {
		return nil
	}
	if p.closed != "" || p.computing {
		return c.closedChain(p, in, chain)
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.Never != "" {
			continue
		}
		comment := fmt.Sprintf("%s %s %d", p.id, DirectionName(in), i+1)
		if r.Name != "" {
			comment += " (" + r.Name + ")"
		}
		w := ruleWriter{calc: c, policy: p, rule: r, base: c.effect(p, r, in, comment)}
		if w.base == nil {
			continue
		}
		w.base.Origin = RuleNumber(i + 1)
		chain.Rules = append(chain.Rules, w.write()...)
	}
	return chain
}

// closedChain drops all packets of a policy that cannot be enforced; a staged one does nothing.
func (c *Calculator) closedChain(p *policyState, in bool, chain *ruleset.Chain) *ruleset.Chain {
	why := computingText
	if p.closed != "" {
		why = "above the budget of its namespace"
	}
	if !p.Staged {
		chain.Rules = []ruleset.Rule{c.denial(p, in, droppedUnusable, fmt.Sprintf("%s %s: %s", p.id,
			DirectionName(in), why))}
	}
	return chain
}

// effect is the action of a rule that matches; nil for nothing.
func (c *Calculator) effect(p *policyState, r *Rule, in bool, comment string) *ruleset.Rule {
	out := &ruleset.Rule{Counter: c.config.Counters || p.Staged, Comment: comment}
	switch {
	case p.Staged:
		if r.Action == Log {
			return nil
		}
		out.Verdict.Action = ruleset.Return
	case r.Action == Allow:
		out.NoTrack = p.DoNotTrack
		if p.DoNotTrack || p.PreDNAT {
			out.Mark = ruleset.Mark{Value: c.settings.marks.Decided, Mask: c.settings.marks.Decided}
		}
		out.Verdict.Action = ruleset.Accept
	case r.Action == Deny:
		deny := c.denial(p, in, DroppedByPolicy, comment)
		out.Verdict, out.Log, out.CountedBy = deny.Verdict, deny.Log, deny.CountedBy
	case r.Action == Pass:
		if p.id.Kind == "Profile" {
			return nil // there is nothing after profiles
		}
		out.Mark = ruleset.Mark{Value: c.settings.marks.Pass, Mask: c.settings.marks.Pass}
		out.Verdict.Action = ruleset.Return
	case r.Action == Log:
		out.Log = c.settings.log(p, comment)
	}
	return out
}

// denial is how a policy's chain drops packets: silently if the kernel cannot answer them, before connections are
// tracked or translated, and at postrouting, where packets from host endpoints are evaluated again.
func (c *Calculator) denial(p *policyState, in bool, why Reason, comment string) ruleset.Rule {
	r := c.settings.deny(comment, why, normalIn)
	early := p.Policy != nil && (p.DoNotTrack || p.PreDNAT)
	if r.Verdict.Action != ruleset.Drop && (early || !in && p.hasHost()) {
		r.Verdict.Action = ruleset.Drop
	}
	return r
}

func (p *policyState) hasHost() bool {
	for e := range p.endpoints {
		if e.host != nil {
			return true
		}
	}
	return false
}

// ruleWriter turns one rule into as many as nftables needs.
type ruleWriter struct {
	calc   *Calculator
	policy *policyState
	rule   *Rule
	base   *ruleset.Rule
}

func (w *ruleWriter) write() []ruleset.Rule {
	if !w.familyMatters() {
		return w.family(0)
	}
	return append(w.family(4), w.family(6)...)
}

// familyMatters: addresses can only be looked at when the family is known.
func (w *ruleWriter) familyMatters() bool {
	r := w.rule
	if r.Family != 0 {
		return true
	}
	for _, e := range []*Entity{&r.Source, &r.Destination} {
		if len(e.Nets)+len(e.NotNets) > 0 || e.Selector != nil || e.NotSelector != nil || e.Service != (Service{}) ||
			len(e.Ports.Names)+len(e.NotPorts.Names) > 0 {
			return true
		}
	}
	return false
}

// family writes the rule for one family; 0 for one without addresses.
func (w *ruleWriter) family(family int) []ruleset.Rule {
	r := w.rule
	if family != 0 && r.Family != 0 && r.Family != family {
		return nil
	}
	var common []ruleset.Match
	if family != 0 {
		common = append(common, ruleset.Match{Field: ruleset.Family, Low: uint32(family)})
	}
	if r.Protocol != 0 {
		common = append(common, ruleset.Match{Field: ruleset.Protocol, Low: uint32(r.Protocol)})
	}
	if r.NotProtocol != 0 {
		common = append(common, ruleset.Match{Field: ruleset.Protocol, Not: true, Low: uint32(r.NotProtocol)})
	}
	sources, ok := w.entity(&r.Source, sourceFields, family)
	if !ok {
		return nil
	}
	destinations, ok := w.entity(&r.Destination, destinationFields, family)
	if !ok {
		return nil
	}
	if r.ICMP != nil {
		common = append(common, r.ICMP.match(false))
	}
	if r.NotICMP != nil {
		common = append(common, r.NotICMP.match(true))
	}
	var rules []ruleset.Rule
	for _, s := range sources {
		for _, d := range destinations {
			out := *w.base
			out.Matches = append(append(append([]ruleset.Match(nil), common...), s...), d...)
			rules = append(rules, out)
		}
	}
	return rules
}

func (i *ICMP) match(not bool) ruleset.Match {
	m := ruleset.Match{Field: ruleset.ICMP, Not: not, Low: uint32(i.Type) << 8, Mask: 0xff00}
	if i.HasCode {
		m.Low, m.Mask = m.Low|uint32(i.Code), 0xffff
	}
	return m
}

// fields are the fields of a packet for one of its ends.
type fields struct{ address, port, endpoint ruleset.Field }

var (
	sourceFields      = fields{ruleset.Source, ruleset.SourcePort, ruleset.SourceEndpoint}
	destinationFields = fields{ruleset.Destination, ruleset.DestinationPort, ruleset.DestinationEndpoint}
)

// entity returns the alternatives, each a conjunction, of which one must hold; false if none can in that family.
func (w *ruleWriter) entity(e *Entity, f fields, family int) ([][]ruleset.Match, bool) {
	var common []ruleset.Match
	for _, n := range []struct {
		nets []netip.Prefix
		not  bool
	}{{e.Nets, false}, {e.NotNets, true}} {
		m, possible := w.nets(n.nets, n.not, f, family)
		if !possible {
			return nil, false
		}
		common = append(common, m...)
	}
	if e.NotSelector != nil {
		if set := w.selectorSet(e.NotSelector, family); set != "" {
			common = append(common, ruleset.Match{Field: f.address, Not: true, Set: set})
		}
	}
	if e.Service != (Service{}) {
		m := w.service(e.Service, f, family)
		if m.Set == "" {
			return nil, false
		}
		common = append(common, m)
	}
	if !e.NotPorts.empty() {
		common = append(common, w.notPorts(e, f, family)...)
	}
	var peers []ruleset.Match
	if e.Selector != nil {
		set := w.selectorSet(e.Selector, family)
		if set == "" {
			return nil, false
		}
		peers = []ruleset.Match{{Field: f.address, Set: set}}
	}
	if e.Ports.empty() {
		return [][]ruleset.Match{append(common, peers...)}, true
	}
	var alternatives [][]ruleset.Match
	if len(e.Ports.Ranges) > 0 {
		numbers := append(append([]ruleset.Match(nil), common...), peers...)
		alternatives = append(alternatives, append(numbers, w.numbers(e.Ports.Ranges, f, false)))
	}
	if set := w.portSet(e.Ports.Names, e.Selector, family); set != "" {
		alternatives = append(alternatives, append(append([]ruleset.Match(nil), common...),
			ruleset.Match{Field: f.endpoint, Set: set}))
	}
	return alternatives, true
}

// nets matches a list of networks of one family, or its complement.
func (w *ruleWriter) nets(all []netip.Prefix, not bool, f fields, family int) (matches []ruleset.Match, possible bool) {
	if len(all) == 0 {
		return nil, true
	}
	var own []netip.Prefix
	for _, n := range all {
		if n.Addr().Is4() == (family == 4) {
			own = append(own, n)
		}
	}
	own = members.Reduce(own)
	everything := len(own) == 1 && own[0].Bits() == 0
	switch {
	case not && len(own) == 0, !not && everything:
		return nil, true
	case !not && len(own) == 0, not && everything:
		return nil, false
	case len(own) == 1:
		return []ruleset.Match{{Field: f.address, Not: not, Prefix: own[0]}}, true
	}
	name, kind := "c4", ruleset.Addresses4
	if family == 6 {
		name, kind = "c6", ruleset.Addresses6
	}
	return []ruleset.Match{{Field: f.address, Not: not, Set: w.calc.literals.use(w.policy, name, kind, elementsOf(own),
		"networks of rules")}}, true
}

func (w *ruleWriter) numbers(ranges [][2]uint16, f fields, not bool) ruleset.Match {
	if len(ranges) == 1 {
		return ruleset.Match{Field: f.port, Not: not, Low: uint32(ranges[0][0]), High: uint32(ranges[0][1])}
	}
	elements := make([]ruleset.Element, len(ranges))
	for i, r := range ranges {
		elements[i] = ruleset.Element{Low: r[0], High: r[1]}
	}
	return ruleset.Match{Field: f.port, Not: not, Set: w.calc.literals.use(w.policy, "p", ruleset.Ports, elements,
		"ports of rules")}
}

func (w *ruleWriter) notPorts(e *Entity, f fields, family int) []ruleset.Match {
	var list []ruleset.Match
	if len(e.NotPorts.Ranges) > 0 {
		list = append(list, w.numbers(e.NotPorts.Ranges, f, true))
	}
	if set := w.portSet(e.NotPorts.Names, e.Selector, family); set != "" {
		list = append(list, ruleset.Match{Field: f.endpoint, Not: true, Set: set})
	}
	return list
}

// acquire returns the name of a set for one family, empty if it has no members and is not in the table.
func (w *ruleWriter) acquire(key setKey, sel *selector.Selector, family int) string {
	s := w.calc.sets.acquire(key, w.policy, sel).inTable()
	if family == 6 {
		return s.half[1].name
	}
	return s.half[0].name
}

func (w *ruleWriter) selectorSet(s *selector.Selector, family int) string {
	return w.acquire(selectorKey(s), s, family)
}

// portSet holds the endpoints with a port of one of these names, of those that sel matches or of all; empty if there is
// none. One set for all names keeps the rules few: there is one for each way in which both ends can match.
func (w *ruleWriter) portSet(names []string, sel *selector.Selector, family int) string {
	if len(names) == 0 {
		return ""
	}
	key, sel := portKey(names, sel, w.rule.Protocol)
	return w.acquire(key, sel, family)
}

func (w *ruleWriter) service(s Service, f fields, family int) ruleset.Match {
	if f == destinationFields {
		return ruleset.Match{Field: f.endpoint, Set: w.acquire(serviceKey(s, true), nil, family)}
	}
	return ruleset.Match{Field: f.address, Set: w.acquire(serviceKey(s, false), nil, family)}
}
