package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/dataplane/policy/members"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// spec is a policy of any kind in the fields of a global one.
type spec struct {
	v3.GlobalNetworkPolicySpec
	id     ID
	staged bool
}

// compile translates a stored policy of any kind. It returns nil for objects without effect: staged deletions, for
// instance. An error names the field that makes the object unusable.
//
// If maxRules is not 0, a policy of a namespace with more rules comes without them: it is above its budget whatever
// they are.
func compile(o *model.Object, maxRules int) (*Policy, error) {
	s, ok := specOf(o)
	if !ok {
		return nil, nil
	}
	p := &Policy{
		ID: s.id, Tier: cmp.Or(s.Tier, "default"), Order: orderOf(s.Order), Staged: s.staged,
		DoNotTrack: s.DoNotTrack, PreDNAT: s.PreDNAT, ApplyOnForward: s.ApplyOnForward || s.DoNotTrack || s.PreDNAT,
		name: s.id.Name,
	}
	if m := o.Metadata(); m != nil && m.GetName() != "" {
		p.name = m.GetName()
	}
	var err error
	if p.Selector, err = subject(s); err != nil {
		return nil, err
	}
	in, out := directions(s)
	if n := len(s.Ingress) + len(s.Egress); s.id.Namespace != "" && over(n, maxRules) {
		p.tooMany, p.Ingress.Applies, p.Egress.Applies = n, in, out
		return p, nil
	}
	if p.Ingress, err = direction(s.id.Namespace, "ingress", in, s.Ingress); err != nil {
		return nil, err
	}
	if p.Egress, err = direction(s.id.Namespace, "egress", out, s.Egress); err != nil {
		return nil, err
	}
	return p, nil
}

func specOf(o *model.Object) (s spec, ok bool) {
	s.id = ID(o.Key)
	switch v := o.Value.(type) {
	case *v3.GlobalNetworkPolicy:
		s.GlobalNetworkPolicySpec = v.Spec
		return s, true
	case *v3.NetworkPolicy:
		p := &v.Spec
		s.GlobalNetworkPolicySpec = v3.GlobalNetworkPolicySpec{Tier: p.Tier, Order: p.Order, Selector: p.Selector,
			ServiceAccountSelector: p.ServiceAccountSelector, Types: p.Types, Ingress: p.Ingress, Egress: p.Egress}
		return s, true
	case *v3.StagedNetworkPolicy:
		p := &v.Spec
		s.staged = true
		s.GlobalNetworkPolicySpec = v3.GlobalNetworkPolicySpec{Tier: p.Tier, Order: p.Order, Selector: p.Selector,
			ServiceAccountSelector: p.ServiceAccountSelector, Types: p.Types, Ingress: p.Ingress, Egress: p.Egress}
		return s, enforceable(p.StagedAction)
	case *v3.StagedGlobalNetworkPolicy:
		p := &v.Spec
		s.staged = true
		s.GlobalNetworkPolicySpec = v3.GlobalNetworkPolicySpec{Tier: p.Tier, Order: p.Order, Selector: p.Selector,
			ServiceAccountSelector: p.ServiceAccountSelector, Types: p.Types, Ingress: p.Ingress, Egress: p.Egress,
			NamespaceSelector: p.NamespaceSelector, DoNotTrack: p.DoNotTrack, PreDNAT: p.PreDNAT,
			ApplyOnForward: p.ApplyOnForward}
		return s, enforceable(p.StagedAction)
	}
	return s, false
}

// enforceable: a staged policy for a change to come, not for a deletion or nothing.
func enforceable(a v3.StagedAction) bool {
	return a == "" || a == v3.StagedActionSet || a == v3.StagedActionLearn
}

// directions infers the types when the author left them out: egress rules imply egress; ingress is implied unless there
// are only egress rules.
func directions(s spec) (ingress, egress bool) {
	if len(s.Types) == 0 {
		return len(s.Ingress) > 0 || len(s.Egress) == 0, len(s.Egress) > 0
	}
	return slices.Contains(s.Types, v3.PolicyTypeIngress), slices.Contains(s.Types, v3.PolicyTypeEgress)
}

// subject is the selector of the endpoints that the policy applies to. In a global policy that selects namespaces,
// all() in its selectors covers every endpoint in a namespace, and in one that selects service accounts every endpoint
// that has one: as in Calico, neither covers host endpoints.
func subject(s spec) (*selector.Selector, error) {
	selected, err1 := parsed("spec.selector", s.Selector)
	namespaces, err2 := parsed("spec.namespaceSelector", s.NamespaceSelector)
	accounts, err3 := parsed("spec.serviceAccountSelector", s.ServiceAccountSelector)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err
	}
	if s.id.Namespace != "" {
		selected = selector.Both(selected, ownNamespace(s.id.Namespace))
	}
	if namespaces != nil {
		selected = selector.Both(selected.Replace(selector.All{}, anyNamespace), scope(namespaces))
	}
	if accounts != nil {
		selected = selector.Both(selected, accounts.Prefixed(model.ServiceAccountLabelPrefix))
		if s.id.Namespace == "" {
			selected = selected.Replace(selector.All{}, selector.Has{Label: model.LabelServiceAccount})
		}
	}
	if selected == nil {
		return selector.New(selector.All{}), nil
	}
	return selected, nil
}

// parsed parses the selector of a field; nil for one that is not set.
func parsed(field, text string) (*selector.Selector, error) {
	if text == "" {
		return nil, nil
	}
	s, err := selector.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return s, nil
}

var anyNamespace = selector.Has{Label: model.LabelNamespace}

func ownNamespace(name string) *selector.Selector {
	return selector.New(selector.Comparison{Label: model.LabelNamespace, Op: selector.Equal, Value: name})
}

// scope makes a selector of namespaces one of the objects in them: all() selects those in any, global() those in none.
func scope(namespaces *selector.Selector) *selector.Selector {
	return namespaces.Prefixed(model.NamespaceLabelPrefix).Replace(selector.All{}, anyNamespace).
		Replace(selector.Global{}, selector.Not{Operand: anyNamespace})
}

func direction(namespace, name string, applies bool, rules []v3.Rule) (Direction, error) {
	d := Direction{Applies: applies}
	if !applies {
		return d, nil
	}
	d.Rules = make([]Rule, 0, len(rules))
	for i := range rules {
		r, err := compileRule(namespace, &rules[i])
		if err != nil {
			return d, fmt.Errorf("spec.%s[%d].%w", name, i, err)
		}
		d.Rules = append(d.Rules, r)
	}
	return d, nil
}

var actions = map[v3.Action]Action{v3.Allow: Allow, v3.Deny: Deny, v3.Pass: Pass, v3.Log: Log}

func compileRule(namespace string, in *v3.Rule) (Rule, error) {
	r := Rule{Action: actions[in.Action]}
	if r.Action == 0 {
		return r, fmt.Errorf("action = %q: must be Allow, Deny, Pass or Log", in.Action)
	}
	if in.Metadata != nil {
		r.Name = in.Metadata.Annotations["name"]
	}
	if in.IPVersion != nil {
		r.Family = *in.IPVersion
	}
	var err error
	if r.Protocol, err = protocolNumber(in.Protocol); err != nil {
		return r, fmt.Errorf("protocol: %w", err)
	}
	if r.NotProtocol, err = protocolNumber(in.NotProtocol); err != nil {
		return r, fmt.Errorf("notProtocol: %w", err)
	}
	r.ICMP, r.NotICMP = icmp(in.ICMP), icmp(in.NotICMP)
	if r.Source, err = entity(namespace, &in.Source); err != nil {
		return r, fmt.Errorf("source.%w", err)
	}
	if r.Destination, err = entity(namespace, &in.Destination); err != nil {
		return r, fmt.Errorf("destination.%w", err)
	}
	for _, e := range []struct {
		stored []numorstring.Port
		ports  PortList
	}{{in.Source.Ports, r.Source.Ports}, {in.Destination.Ports, r.Destination.Ports}} {
		if len(e.stored) > 0 && e.ports.empty() {
			r.Never = "it requires ports and names none" // rather than any port
		}
	}
	r.settleFamily()
	return r, nil
}

const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoDCCP    = 33
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136
)

var protocols = map[string]uint8{
	"tcp": protoTCP, "udp": protoUDP, "icmp": protoICMP, "icmpv6": protoICMPv6, "sctp": protoSCTP,
	"udplite": protoUDPLite,
}

// protocolNumber is 0 for none.
func protocolNumber(p *numorstring.Protocol) (uint8, error) {
	if p == nil {
		return 0, nil
	}
	if p.Type == numorstring.NumOrStringNum {
		return p.NumVal, nil
	}
	if n, ok := protocols[strings.ToLower(p.StrVal)]; ok {
		return n, nil
	}
	n, err := p.NumValue()
	if err != nil {
		return 0, fmt.Errorf("%q is not a protocol: must be a number, TCP, UDP, SCTP, UDPLite, ICMP or ICMPv6",
			p.StrVal)
	}
	return n, nil
}

func icmp(f *v3.ICMPFields) *ICMP {
	if f == nil || f.Type == nil {
		return nil
	}
	i := &ICMP{Type: uint8(*f.Type)}
	if f.Code != nil {
		i.HasCode, i.Code = true, uint8(*f.Code)
	}
	return i
}

func entity(namespace string, in *v3.EntityRule) (Entity, error) {
	var e Entity
	var err error
	if e.Nets, err = nets(in.Nets); err != nil {
		return e, fmt.Errorf("nets: %w", err)
	}
	if e.NotNets, err = nets(in.NotNets); err != nil {
		return e, fmt.Errorf("notNets: %w", err)
	}
	if e.Selector, err = peers(namespace, in); err != nil {
		return e, err
	}
	if e.NotSelector, err = parsed("notSelector", in.NotSelector); err != nil {
		return e, err
	}
	if e.Selector != nil && e.NotSelector != nil {
		// Together they select endpoints that the one selects and the other does not, as in Calico: an address counts
		// if a selected endpoint has it, whoever else has it, too. On its own, notSelector is about addresses.
		e.Selector = selector.Both(e.Selector, selector.New(selector.Not{Operand: e.NotSelector.Root()}))
		e.NotSelector = nil
	}
	e.Ports, e.NotPorts = ports(in.Ports), ports(in.NotPorts)
	if in.Services != nil {
		e.Service = Service{Namespace: cmp.Or(in.Services.Namespace, namespace), Name: in.Services.Name}
	}
	return e, nil
}

// peers combines the endpoint fields of an entity: namespaces, service accounts, labels. If none is set, a namespaced
// policy's entity is not limited to the namespace; otherwise it is, unless a field widens it. notSelector alone does
// count.
func peers(namespace string, in *v3.EntityRule) (*selector.Selector, error) {
	var a v3.ServiceAccountMatch
	if in.ServiceAccounts != nil {
		a = *in.ServiceAccounts
	}
	namespaces, err1 := parsed("namespaceSelector", in.NamespaceSelector)
	accounts, err2 := parsed("serviceAccounts.selector", a.Selector)
	selected, err3 := parsed("selector", in.Selector)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return nil, err
	}
	accounts = accounts.Prefixed(model.ServiceAccountLabelPrefix)
	if len(a.Names) > 0 {
		accounts = selector.Both(accounts, selector.OneOf(model.LabelServiceAccount, a.Names))
	}
	selected = selector.Both(accounts, selected)
	switch {
	case namespaces != nil:
		return selector.Both(scope(namespaces), selected), nil
	case namespace != "" && (selected != nil || in.NotSelector != ""):
		return selector.Both(ownNamespace(namespace), selected), nil
	}
	return selected, nil
}

func nets(texts []string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, t := range texts {
		p, err := ParseNet(t)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}

// ParseNet reads "10.0.0.0/8" or a single address; bits beyond the length are dropped.
func ParseNet(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a.WithZone("").Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, fmt.Errorf("%q is neither an address nor a CIDR", text)
	}
	return p.Masked(), nil
}

func ports(list []numorstring.Port) PortList {
	var p PortList
	for _, q := range list {
		if q.PortName != "" {
			p.Names = append(p.Names, q.PortName)
		} else {
			p.Ranges = append(p.Ranges, [2]uint16{q.MinPort, q.MaxPort})
		}
	}
	p.Ranges = members.MergePorts(p.Ranges)
	slices.Sort(p.Names)
	p.Names = slices.Compact(p.Names)
	return p
}

// settleFamily finds the one family that the rule can be about, if there is only one.
func (r *Rule) settleFamily() {
	want := func(family int, why string) {
		switch {
		case r.Family == 0:
			r.Family = family
		case r.Family != family:
			r.Never = fmt.Sprintf("it requires IPv%d and %s", r.Family, why)
		}
	}
	if r.Protocol == protoICMP {
		want(4, "ICMP, which is IPv4's")
	}
	if r.Protocol == protoICMPv6 {
		want(6, "ICMPv6")
	}
	// As in Calico, a list without networks of a family leaves that family out, even a negated list: an author who
	// excludes networks of IPv4 only has not thought of IPv6.
	for _, list := range [][]netip.Prefix{r.Source.Nets, r.Destination.Nets, r.Source.NotNets, r.Destination.NotNets} {
		has4 := slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Addr().Is4() })
		has6 := slices.ContainsFunc(list, func(p netip.Prefix) bool { return !p.Addr().Is4() })
		switch {
		case has4 && !has6:
			want(4, "IPv4 networks")
		case has6 && !has4:
			want(6, "IPv6 networks")
		}
	}
}
