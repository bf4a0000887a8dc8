package property

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// path is the way of a packet.
type path string

const (
	forward path = "forward"
	input   path = "input"
	output  path = "output"
)

// reference answers straight from the objects, by Calico's documentation: slowly, without chains, sets or marks. It
// knows new connections only.
type reference struct {
	set       model.Set
	selectors map[string]*selector.Selector
	peers     []*peer
	policies  []*rules
	owners    map[string]*subject // of workload interfaces
	hosts     map[string]*subject
	wildcard  *subject
	felix     model.FelixConfigurationSpec
}

// peer is a possible peer of a rule.
type peer struct {
	labels map[string]string
	nets   []netip.Prefix
	ports  []v3.EndpointPort
}

// subject is an endpoint of this node.
type subject struct {
	name     string
	labels   map[string]string
	profiles []string
	spoof    []string
	host     bool
}

// rules is a policy of any kind.
type rules struct {
	namespace, rank                     string
	tier                                string
	order                               float64
	selects                             func(map[string]string) bool
	ingress, egress                     []v3.Rule
	in, out                             bool
	doNotTrack, preDNAT, applyOnForward bool
}

func newReference(set model.Set, links map[string][]netip.Addr) *reference {
	r := &reference{set: set, selectors: map[string]*selector.Selector{}, owners: map[string]*subject{},
		hosts: map[string]*subject{}}
	for _, kind := range []model.Kind{model.KindWorkloadEndpoint, model.KindHostEndpoint, model.KindNetworkSet,
		model.KindGlobalNetworkSet} {
		for o := range set.All(kind) {
			r.enter(o, links)
		}
	}
	for o := range set.All(model.KindNetworkPolicy) {
		r.addNamespaced(o.Key, o.Value.(*v3.NetworkPolicy))
	}
	for o := range set.All(model.KindGlobalNetworkPolicy) {
		r.addGlobal(o.Key, o.Value.(*v3.GlobalNetworkPolicy))
	}
	r.enterKubernetes()
	r.readFelix()
	return r
}

// enterKubernetes replaces Kubernetes' own policies by their conversion, which is tested elsewhere.
func (r *reference) enterKubernetes() {
	for _, kind := range []model.Kind{model.KindKubernetesNetworkPolicy, model.KindClusterNetworkPolicy} {
		for o := range r.set.All(kind) {
			turned, err := conversion.Policy(o)
			if err != nil || turned == nil {
				continue
			}
			switch v := turned.Value.(type) {
			case *v3.NetworkPolicy:
				r.addNamespaced(o.Key, v)
			case *v3.GlobalNetworkPolicy:
				key := o.Key
				key.Kind = "KubernetesClusterNetworkPolicy" // as Calico calls it
				r.addGlobal(key, v)
			}
		}
	}
}

func (r *reference) addNamespaced(k model.Key, p *v3.NetworkPolicy) {
	s := p.Spec
	r.addPolicy(k, s.Tier, s.Order, s.Types, s.Ingress, s.Egress).selects = func(l map[string]string) bool {
		return l[model.LabelNamespace] == k.Namespace && r.match(s.Selector, l) &&
			r.match(s.ServiceAccountSelector, prefixed("pcsa.", l))
	}
}

func (r *reference) addGlobal(k model.Key, v *v3.GlobalNetworkPolicy) {
	s := v.Spec
	p := r.addPolicy(k, s.Tier, s.Order, s.Types, s.Ingress, s.Egress)
	p.doNotTrack, p.preDNAT, p.applyOnForward = s.DoNotTrack, s.PreDNAT, s.ApplyOnForward
	p.selects = func(l map[string]string) bool {
		selector := s.Selector
		if s.NamespaceSelector != "" {
			if selector = strings.ReplaceAll(selector, "all()", "has("+model.LabelNamespace+")"); !r.inScope(
				s.NamespaceSelector, l) {
				return false
			}
		}
		if s.ServiceAccountSelector == "" {
			return r.match(selector, l)
		}
		_, account := l[model.LabelServiceAccount]
		selector = strings.ReplaceAll(selector, "all()", "has("+model.LabelServiceAccount+")")
		return r.match(selector, l) && r.match(s.ServiceAccountSelector, prefixed("pcsa.", l)) &&
			(account || s.ServiceAccountSelector != "all()")
	}
}

func (r *reference) addPolicy(
	k model.Key, tier string, order *float64, types []v3.PolicyType, in, out []v3.Rule,
) *rules {
	p := &rules{namespace: k.Namespace, rank: k.Name + "/" + k.Namespace + "/" + string(k.Kind),
		tier: cmp.Or(tier, "default"), order: math.Inf(1),
		ingress: in, egress: out, in: slices.Contains(types, v3.PolicyTypeIngress),
		out: slices.Contains(types, v3.PolicyTypeEgress)}
	if len(types) == 0 {
		p.out = len(out) > 0
		p.in = len(in) > 0 || !p.out
	}
	if order != nil {
		p.order = *order
	}
	r.policies = append(r.policies, p)
	return p
}

// enter adds endpoints and network sets as peers, and those of this node as subjects.
func (r *reference) enter(o *model.Object, links map[string][]netip.Addr) {
	switch v := o.Value.(type) {
	case *model.WorkloadEndpoint:
		own := withoutInherited(v.Labels)
		own[model.LabelServiceAccount] = v.Spec.ServiceAccountName
		labels := r.inherit(own, v.Spec.Profiles)
		p := &peer{labels: labels, nets: parseAll(v.Spec.IPNetworks)}
		for _, q := range v.Spec.Ports {
			p.ports = append(p.ports, v3.EndpointPort{Name: q.Name, Protocol: q.Protocol, Port: q.Port})
		}
		r.peers = append(r.peers, p)
		if i := v.Spec.InterfaceName; v.Spec.Node == thisNode && r.owners[i] == nil {
			r.owners[i] = &subject{name: o.Key.String(), labels: labels, profiles: v.Spec.Profiles,
				spoof: v.Spec.AllowSpoofedSourcePrefixes}
		}
	case *v3.HostEndpoint:
		labels := r.inherit(v.Labels, v.Spec.Profiles)
		r.peers = append(r.peers, &peer{labels: labels, nets: parseAll(v.Spec.ExpectedIPs), ports: v.Spec.Ports})
		if v.Spec.Node != thisNode {
			return
		}
		s := &subject{name: o.Key.String(), labels: labels, profiles: v.Spec.Profiles, host: true}
		if v.Spec.InterfaceName == "*" {
			r.wildcard = cmp.Or(r.wildcard, s)
			return
		}
		for iface, addrs := range links {
			selected := v.Spec.InterfaceName == iface
			if v.Spec.InterfaceName == "" {
				selected = slices.ContainsFunc(addrs, func(a netip.Addr) bool {
					return slices.Contains(v.Spec.ExpectedIPs, a.String())
				})
			}
			if selected && !isPod(iface) && r.hosts[iface] == nil {
				r.hosts[iface] = s
			}
		}
	case *v3.NetworkSet:
		labels := r.inherit(withoutInherited(v.Labels), []string{"kns." + o.Key.Namespace})
		labels[model.LabelNamespace] = o.Key.Namespace
		r.peers = append(r.peers, &peer{labels: labels, nets: parseAll(v.Spec.Nets)})
	case *v3.GlobalNetworkSet:
		r.peers = append(r.peers, &peer{labels: v.Labels, nets: parseAll(v.Spec.Nets)})
	}
}

// withoutInherited leaves out labels that only namespaces and service accounts can set.
func withoutInherited(labels map[string]string) map[string]string {
	own := map[string]string{}
	for name, value := range labels {
		if !strings.HasPrefix(name, "pcns.") && !strings.HasPrefix(name, "pcsa.") {
			own[name] = value
		}
	}
	return own
}

func isPod(iface string) bool { return strings.HasPrefix(iface, "cali") }

func parseAll(texts []string) []netip.Prefix {
	var list []netip.Prefix
	for _, t := range texts {
		list = append(list, parseNet(t))
	}
	return list
}

// inherit adds the labels of profiles: an endpoint's own come first, then those of the first profile that has them.
func (r *reference) inherit(own map[string]string, profiles []string) map[string]string {
	all := map[string]string{}
	for k, v := range own {
		all[k] = v
	}
	for _, name := range profiles {
		if p := model.Get[v3.Profile](r.set, model.ResourceKey(model.KindProfile, name)); p != nil {
			for k, v := range p.Spec.LabelsToApply {
				if _, ok := all[k]; !ok {
					all[k] = v
				}
			}
		}
	}
	return all
}

// prefixed returns the labels that begin with a prefix, without the prefix.
func prefixed(prefix string, l map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range l {
		if rest, ok := strings.CutPrefix(k, prefix); ok {
			out[rest] = v
		}
	}
	return out
}

func (r *reference) match(text string, l map[string]string) bool {
	s := r.selectors[text]
	if s == nil {
		var err error
		if s, err = selector.Parse(text); err != nil {
			panic(err)
		}
		r.selectors[text] = s
	}
	return s.Matches(selector.Map(l))
}

// inScope reports whether something is in one of the namespaces that a selector is about; "all()" and "global()" are
// about being in any and in none.
func (r *reference) inScope(text string, l map[string]string) bool {
	_, in := l[model.LabelNamespace]
	switch text {
	case "all()":
		return in
	case "global()":
		return !in
	}
	return r.match(text, prefixed("pcns.", l))
}

func (r *reference) readFelix() {
	for _, name := range []string{"default", "node." + thisNode} {
		f := model.Get[model.FelixConfiguration](r.set, model.ResourceKey(model.KindFelixConfiguration, name))
		if f == nil {
			continue
		}
		s := &r.felix
		s.DefaultEndpointToHostAction = cmp.Or(f.Spec.DefaultEndpointToHostAction, s.DefaultEndpointToHostAction)
		s.WorkloadSourceSpoofing = cmp.Or(f.Spec.WorkloadSourceSpoofing, s.WorkloadSourceSpoofing)
		s.AllowIPIPPacketsFromWorkloads = cmp.Or(f.Spec.AllowIPIPPacketsFromWorkloads, s.AllowIPIPPacketsFromWorkloads)
		s.FailsafeInboundHostPorts = cmp.Or(f.Spec.FailsafeInboundHostPorts, s.FailsafeInboundHostPorts)
		s.FailsafeOutboundHostPorts = cmp.Or(f.Spec.FailsafeOutboundHostPorts, s.FailsafeOutboundHostPorts)
		s.ServiceLoopPrevention = cmp.Or(f.Spec.ServiceLoopPrevention, s.ServiceLoopPrevention)
	}
}

// accepts follows a packet through everything that may stop it.
func (r *reference) accepts(way path, p *ruleset.Packet) bool {
	// before connections are tracked, or before translation: then a host endpoint's other policies are not evaluated
	decided := false
	if way != output {
		if isPod(p.In) && !r.sourceAllowed(p) {
			return false
		}
		for _, early := range []struct {
			e    *subject
			kind func(*rules) bool
		}{
			{r.hosts[p.In], func(x *rules) bool { return x.doNotTrack }},
			{cmp.Or(r.hosts[p.In], r.wildcard), func(x *rules) bool { return x.preDNAT }},
		} {
			if early.e == nil || decided || r.failsafe(p, true, early.kind(&rules{doNotTrack: true})) {
				continue
			}
			switch r.tiers(early.e, true, early.kind, true, p) {
			case v3.Deny:
				return false
			case v3.Allow:
				decided = true
			}
		}
	}
	switch way {
	case input:
		return r.toHost(p, decided)
	case output:
		return r.fromHost(p)
	}
	return r.forwarded(p, decided)
}

func (r *reference) sourceAllowed(p *ruleset.Packet) bool {
	if e := r.owners[p.In]; e != nil && r.felix.WorkloadSourceSpoofing == "Any" && within(p.Source, parseAll(e.spoof)) {
		return true
	}
	return route(p.Source) == p.In
}

func (r *reference) toHost(p *ruleset.Packet, decided bool) bool {
	if p.Protocol == 4 && p.Source.Is4() && r.tunnels() && !r.isNode(p.Source) {
		return false
	}
	if isPod(p.In) {
		if p.Protocol == 58 && slices.Contains([]uint8{130, 131, 132, 133, 135, 136}, p.ICMPType) {
			return true
		}
		action := strings.ToLower(r.felix.DefaultEndpointToHostAction)
		return r.workload(p.In, false, p) && (action == "accept" || action == "return")
	}
	e := cmp.Or(r.hosts[p.In], r.wildcard)
	return e == nil || decided || r.tunnel(p, p.Source) || r.failsafe(p, true, false) || r.evaluateNormal(e, true, p)
}

func (r *reference) fromHost(p *ruleset.Packet) bool {
	if e := r.hosts[p.Out]; e != nil && !r.failsafe(p, false, true) {
		switch r.tiers(e, false, func(x *rules) bool { return x.doNotTrack }, true, p) {
		case v3.Deny:
			return false
		case v3.Allow:
			return true
		}
	}
	e := cmp.Or(r.hosts[p.Out], r.wildcard)
	return isPod(p.Out) || e == nil || r.tunnel(p, p.Destination) || r.failsafe(p, false, false) ||
		r.evaluateNormal(e, false, p)
}

// tunnel reports whether a packet between nodes has a workload's packet in it.
func (r *reference) tunnel(p *ruleset.Packet, other netip.Addr) bool {
	return p.Protocol == 4 && p.Source.Is4() && r.tunnels() && r.isNode(other)
}

func (r *reference) forwarded(p *ruleset.Packet, decided bool) bool {
	forwarded := func(x *rules) bool { return x.applyOnForward && !x.doNotTrack && !x.preDNAT }
	// The wildcard stands for interfaces of workloads, too.
	from, to := cmp.Or(r.hosts[p.In], r.wildcard), cmp.Or(r.hosts[p.Out], r.wildcard)
	if from != nil && !decided && r.tiers(from, true, forwarded, false, p) == v3.Deny ||
		isPod(p.In) && !r.workload(p.In, false, p) || isPod(p.Out) && !r.workload(p.Out, true, p) ||
		to != nil && r.tiers(to, false, forwarded, false, p) == v3.Deny {
		return false
	}
	if b := model.Get[model.BGPConfiguration](r.set, model.ResourceKey(model.KindBGPConfiguration,
		"default")); b != nil && r.felix.ServiceLoopPrevention != "Disabled" {
		for _, s := range b.Spec.ServiceClusterIPs {
			if parseNet(s.CIDR).Contains(p.Destination) {
				return false
			}
		}
	}
	return true
}

func (r *reference) workload(iface string, in bool, p *ruleset.Packet) bool {
	e := r.owners[iface]
	if e == nil {
		return false
	}
	if !in && (p.Protocol == 17 && p.DestinationPort == 4789 || p.Protocol == 4 &&
		!isTrue(r.felix.AllowIPIPPacketsFromWorkloads)) {
		return false
	}
	return r.evaluateNormal(e, in, p)
}

func isTrue(b *bool) bool { return b != nil && *b }

// evaluateNormal evaluates tiers, then profiles.
func (r *reference) evaluateNormal(e *subject, in bool, p *ruleset.Packet) bool {
	if v := r.tiers(e, in, func(x *rules) bool { return !x.doNotTrack && !x.preDNAT }, false, p); v != "" {
		return v == v3.Allow
	}
	for _, name := range e.profiles {
		v := model.Get[v3.Profile](r.set, model.ResourceKey(model.KindProfile, name))
		if v == nil {
			return name == model.DefaultAllowProfile
		}
		list := v.Spec.Egress
		if in {
			list = v.Spec.Ingress
		}
		if action := r.firstAction(list, "", p); action == v3.Allow || action == v3.Deny {
			return action == v3.Allow
		}
	}
	return false
}

// tiers evaluates policies of some kind: Allow, Deny, or nothing if none decides.
func (r *reference) tiers(e *subject, in bool, kind func(*rules) bool, pass bool, p *ruleset.Packet) v3.Action {
	var list []*rules
	for _, x := range r.policies {
		if kind(x) && (in && x.in || !in && x.out) && x.selects(e.labels) {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b *rules) int {
		return cmp.Or(r.compareTiers(a.tier, b.tier), cmp.Compare(a.order, b.order), strings.Compare(a.rank, b.rank))
	})
	for len(list) > 0 {
		n := slices.IndexFunc(list, func(x *rules) bool { return x.tier != list[0].tier })
		if n < 0 {
			n = len(list)
		}
		var verdict v3.Action
		for _, x := range list[:n] {
			matched := x.egress
			if in {
				matched = x.ingress
			}
			if verdict = r.firstAction(matched, x.namespace, p); verdict != "" {
				break
			}
		}
		switch {
		case verdict == v3.Allow || verdict == v3.Deny:
			return verdict
		case verdict == "" && !pass && !r.passes(list[0].tier):
			return v3.Deny
		}
		list = list[n:]
	}
	return ""
}

func (r *reference) tier(name string) (order float64, pass, exists bool) {
	if t := model.Get[model.Tier](r.set, model.ResourceKey(model.KindTier, name)); t != nil {
		order = math.Inf(1)
		if t.Spec.Order != nil {
			order = *t.Spec.Order
		}
		return order, t.Spec.DefaultAction != nil && *t.Spec.DefaultAction == v3.Pass, true
	}
	switch name {
	case "default":
		return 1_000_000, false, true
	case "kube-admin":
		return 1_000, true, true
	case "kube-baseline":
		return 10_000_000, true, true
	}
	return math.Inf(1), false, false
}

func (r *reference) passes(tier string) bool {
	_, pass, _ := r.tier(tier)
	return pass
}

func (r *reference) compareTiers(a, b string) int {
	x, _, existsA := r.tier(a)
	y, _, existsB := r.tier(b)
	switch {
	case existsA && !existsB:
		return -1
	case existsB && !existsA:
		return 1
	}
	return cmp.Or(cmp.Compare(x, y), strings.Compare(a, b))
}

func (r *reference) tunnels() bool {
	for _, p := range model.All[model.IPPool](r.set, model.KindIPPool) {
		if p.Spec.IPIPMode == v3.IPIPModeAlways {
			return true
		}
	}
	return false
}

func (r *reference) isNode(a netip.Addr) bool {
	for _, n := range model.All[model.Node](r.set, model.KindNode) {
		if netip.MustParsePrefix(n.Spec.BGP.IPv4Address).Addr() == a {
			return true
		}
	}
	return false
}
