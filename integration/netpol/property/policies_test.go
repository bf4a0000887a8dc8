package property

import (
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/datastore/model"
)

var selectors = []string{
	"", "all()", "app == 'a'", "app != 'a'", "has(app)", "!has(app)", "tier in {'a', 'b'}", "tier not in {'a', ''}",
	"zone == 'c' || app == 'b'",
	"has(zone) && app != 'c'", "app starts with 'a'", "!(zone == 'a' && has(tier))", "host == 'yes'",
	"has(projectcalico.org/namespace)",
	"pcns.app == 'a'", "app contains 'b'", "zone ends with 'c'", "app == 'nobody'",
}

var scopes = []string{"all()", "global()", "app == 'a'", "projectcalico.org/name == 'red'", "has(app) || tier == 'b'",
	"!has(zone)", "app != 'a'"}

var accountSelectors = []string{"app == 'a'", "has(tier)", "all()", "app != 'a'"}

func (g *generator) tierName() string {
	return pick(g, []string{"default", "default", "first", "second", "kube-admin", "lost"})
}

func (g *generator) types(in, out []v3.Rule) []v3.PolicyType {
	switch g.IntN(4) {
	case 0:
		return nil
	case 1:
		return []v3.PolicyType{v3.PolicyTypeIngress}
	case 2:
		return []v3.PolicyType{v3.PolicyTypeEgress}
	}
	return []v3.PolicyType{v3.PolicyTypeIngress, v3.PolicyTypeEgress}
}

func (g *generator) namespaced(namespace string) v3.NetworkPolicySpec {
	s := v3.NetworkPolicySpec{Tier: g.tierName(), Order: g.order(), Selector: pick(g, selectors),
		Ingress: g.rules(namespace, true, true), Egress: g.rules(namespace, false, true)}
	if g.one(5) {
		s.ServiceAccountSelector = pick(g, accountSelectors)
	}
	s.Types = g.types(s.Ingress, s.Egress)
	return s
}

func (g *generator) global() v3.GlobalNetworkPolicySpec {
	s := v3.GlobalNetworkPolicySpec{Tier: g.tierName(), Order: g.order(), Selector: pick(g, selectors),
		Ingress: g.rules("", true, true), Egress: g.rules("", false, true)}
	if g.one(5) {
		s.NamespaceSelector = pick(g, append([]string{"all()"}, scopes[2:]...)) // global() is only for rules
	}
	if g.one(8) {
		s.ServiceAccountSelector = pick(g, accountSelectors)
	}
	s.Types = g.types(s.Ingress, s.Egress)
	switch g.IntN(6) {
	case 0:
		s.DoNotTrack, s.ApplyOnForward = true, true
	case 1:
		s.PreDNAT, s.ApplyOnForward = true, true
		s.Egress, s.Types = nil, []v3.PolicyType{v3.PolicyTypeIngress}
	case 2, 3:
		s.ApplyOnForward = true
	}
	return s
}

func (g *generator) rules(namespace string, in, pass bool) []v3.Rule {
	var list []v3.Rule
	for range g.IntN(4) {
		list = append(list, g.rule(namespace, in, pass))
	}
	return list
}

func (g *generator) rule(namespace string, in, pass bool) v3.Rule {
	r := v3.Rule{Action: pick(g, []v3.Action{v3.Allow, v3.Allow, v3.Allow, v3.Deny, v3.Deny, v3.Log, v3.Pass, v3.Pass})}
	if !pass && r.Action == v3.Pass {
		r.Action = v3.Deny
	}
	protocol := ""
	switch g.IntN(8) {
	case 0, 1, 2, 3:
		protocol = pick(g, portTypes)
	case 4:
		protocol = pick(g, []string{"ICMP", "ICMPv6"})
		if g.one(2) {
			f := v3.ICMPFields{Type: number(pick(g, icmpTypes))}
			if g.one(3) {
				f.Code = number(0)
			}
			if g.one(3) {
				r.NotICMP = &f
			} else {
				r.ICMP = &f
			}
		}
	case 5:
		n := numorstring.ProtocolFromString(pick(g, append([]string{"ICMP"}, portTypes...)))
		r.NotProtocol = &n
	case 6:
		n := numorstring.ProtocolFromInt(pick(g, []uint8{253, 6, 17}))
		r.Protocol = &n
	}
	if protocol != "" {
		p := numorstring.ProtocolFromString(protocol)
		r.Protocol = &p
	}
	ported := r.Protocol != nil && r.Protocol.SupportsPorts()
	r.Source, r.Destination = g.entity(namespace, ported, in), g.entity(namespace, ported, !in)
	if r.Protocol == nil && g.one(6) && r.Destination.Services == nil { // names of ports can do without a protocol
		r.Destination.Ports = []numorstring.Port{numorstring.NamedPort(pick(g, portNames))}
		if g.one(2) {
			r.Destination.Ports, r.Destination.NotPorts = nil, r.Destination.Ports
		}
	}
	if g.one(8) {
		version := pick(g, []int{4, 6})
		if !(protocol == "ICMP" && version == 6 || protocol == "ICMPv6" && version == 4) &&
			sameFamily(version, r.Source, r.Destination) {
			r.IPVersion = &version
		}
	}
	return r
}

// sameFamily: rules with a family that name networks of the other are refused.
func sameFamily(version int, entities ...v3.EntityRule) bool {
	for _, e := range entities {
		for _, n := range append(append([]string(nil), e.Nets...), e.NotNets...) {
			if parseNet(n).Addr().Is4() != (version == 4) {
				return false
			}
		}
	}
	return true
}

var icmpTypes = []int{8, 0, 3, 128, 1}

func number(n int) *int { return &n }

func (g *generator) entity(namespace string, ported, remote bool) v3.EntityRule {
	var e v3.EntityRule
	if g.one(2) {
		return e
	}
	if remote && g.one(6) {
		e.Services = &v3.ServiceMatch{Name: pick(g, serviceNames), Namespace: pick(g, namespaces)}
		return e
	}
	if g.one(3) {
		e.Nets = g.family(some(g, nets, 3))
	}
	if g.one(5) {
		e.NotNets = g.family(some(g, nets, 2))
	}
	if g.one(2) {
		e.Selector = pick(g, selectors)
	}
	if g.one(5) {
		e.NotSelector = pick(g, selectors[2:])
	}
	if g.one(5) {
		e.NamespaceSelector = pick(g, scopes)
	}
	if g.one(8) {
		e.ServiceAccounts = &v3.ServiceAccountMatch{Names: some(g, accounts, 2)}
		if g.one(2) {
			e.ServiceAccounts = &v3.ServiceAccountMatch{Selector: pick(g, accountSelectors)}
		}
	}
	if ported {
		if g.one(2) {
			e.Ports = g.ports()
		}
		if g.one(5) {
			e.NotPorts = g.ports()
		}
	}
	return e
}

// family keeps lists mostly to one family, as validation requires.
func (g *generator) family(list []string) []string {
	var out []string
	for _, n := range list {
		if parseNet(n).Addr().Is4() == parseNet(list[0]).Addr().Is4() {
			out = append(out, n)
		}
	}
	return out
}

func (g *generator) ports() []numorstring.Port {
	var list []numorstring.Port
	for range 1 + g.IntN(2) {
		n := pick(g, numbers)
		switch g.IntN(3) {
		case 0:
			list = append(list, numorstring.NamedPort(pick(g, portNames)))
		case 1:
			list = append(list, numorstring.SinglePort(n))
		case 2:
			p, _ := numorstring.PortFromRange(n, n+uint16(g.IntN(400)))
			list = append(list, p)
		}
	}
	return list
}

// world is the state after some objects came.
func (g *generator) world(size int) model.Set {
	set := model.Set{}
	for range size {
		k := g.key()
		set[k] = g.object(k)
	}
	return set
}
