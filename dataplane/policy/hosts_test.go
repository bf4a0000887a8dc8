package policy

import (
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

func hostEndpoint(iface string) *model.Object {
	h := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "host"}, Spec: v3.HostEndpointSpec{
		Node: testNode, InterfaceName: iface}}
	return model.NewObject(model.ResourceKey(model.KindHostEndpoint, "host"), h)
}

func globalPolicy(name string, spec v3.GlobalNetworkPolicySpec) *model.Object {
	p := &v3.GlobalNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	return model.NewObject(model.ResourceKey(model.KindGlobalNetworkPolicy, name), p)
}

var (
	twoTypes = []v3.PolicyType{v3.PolicyTypeIngress, v3.PolicyTypeEgress}
	allowed  = []v3.Rule{{Action: v3.Allow}}
)

// Packets that an untracked or pre-DNAT policy of a host endpoint allows are subject to no other policy of that host
// endpoint.
func TestEarlyPoliciesOfHostEndpointsDecide(t *testing.T) {
	away, here := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")
	in := ruleset.Packet{In: "eth0", Source: away, Destination: here, Protocol: 6, SourcePort: 1025,
		DestinationPort: 80, Mark: standardMarks.Decided}
	out := ruleset.Packet{Out: "eth0", Source: here, Destination: away, Protocol: 6, SourcePort: 80,
		DestinationPort: 1025, Mark: standardMarks.Decided}
	through := ruleset.Packet{In: "eth0", Out: "eth1", Source: away, Destination: netip.MustParseAddr("10.0.0.1"),
		Protocol: 6, DestinationPort: 80, Mark: standardMarks.Decided}
	denies := globalPolicy("deny", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, Types: twoTypes})
	untracked := globalPolicy("early", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, DoNotTrack: true,
		Types: twoTypes, Ingress: allowed, Egress: allowed})
	preDNAT := globalPolicy("early", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, PreDNAT: true,
		Types: twoTypes[:1], Ingress: allowed})
	for _, c := range []struct {
		name             string
		early            *model.Object
		in, out, through bool
	}{
		{"no early policy", nil, false, false, false},
		{"untracked", untracked, true, true, true},
		{"pre-DNAT", preDNAT, true, false, true},
	} {
		set := model.NewSet(hostEndpoint("eth0"), denies)
		if c.early != nil {
			set[c.early.Key] = c.early
		}
		table := Build(Config{Node: testNode}, set, map[string][]netip.Addr{"eth0": {here}, "eth1": nil}).Table()
		host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
		for way, r := range map[string]struct {
			result ruleset.Result
			want   bool
		}{
			"in":      {table.EvalInput(host, in, nil), c.in},
			"out":     {table.EvalOutput(host, out, nil), c.out},
			"through": {table.EvalForward(host, through, nil), c.through},
		} {
			if r.result.Accepted() != r.want {
				t.Errorf("%s, %s: accepted %v, want %v", c.name, way, r.result.Accepted(), r.want)
			} else if r.want && r.result.Packet.Mark != 0 {
				t.Errorf("%s, %s: goes on with mark %#x", c.name, way, r.result.Packet.Mark)
			}
		}
	}
}

// Packets between workloads travel inside IPIP packets between hosts. No policy for the hosts may drop these.
func TestTunnelsPassHostEndpoints(t *testing.T) {
	here, node, stranger := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
		netip.MustParseAddr("192.0.2.3")
	object := func(kind model.Kind, name string, v any) *model.Object {
		return model.NewObject(model.ResourceKey(kind, name), v)
	}
	other := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: node.String() + "/24"}}}
	pool := func(mode v3.IPIPMode) *model.Object {
		return object(model.KindIPPool, "pool",
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16", IPIPMode: mode}})
	}
	felix := func(set func(*model.FelixConfigurationSpec)) *model.Object {
		f := &model.FelixConfiguration{}
		set(&f.Spec)
		return object(model.KindFelixConfiguration, "default", f)
	}
	ipip := func(on bool) *model.Object {
		return felix(func(s *model.FelixConfigurationSpec) { s.IPIPEnabled = &on })
	}
	external := felix(func(s *model.FelixConfigurationSpec) { s.ExternalNodesCIDRList = &[]string{"192.0.2.3"} })
	for _, c := range []struct {
		name           string
		objects        []*model.Object
		node, stranger bool
	}{
		{"no tunnels", []*model.Object{pool(v3.IPIPModeNever)}, false, false},
		{"tunnels", []*model.Object{pool(v3.IPIPModeAlways)}, true, false},
		{"tunnels between networks", []*model.Object{pool(v3.IPIPModeCrossSubnet)}, true, false},
		{"a stranger who is none", []*model.Object{pool(v3.IPIPModeAlways), external}, true, true},
		{"turned off", []*model.Object{pool(v3.IPIPModeAlways), ipip(false)}, false, false},
		{"turned on", []*model.Object{pool(v3.IPIPModeNever), ipip(true)}, true, false},
	} {
		set := model.NewSet(append(c.objects, hostEndpoint("eth0"), object(model.KindNode, "other", other))...)
		table := Build(Config{Node: testNode}, set, map[string][]netip.Addr{"eth0": {here}}).Table()
		host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
		for peer, want := range map[netip.Addr]bool{node: c.node, stranger: c.stranger} {
			for protocol, want := range map[uint8]bool{4: want, 253: false} {
				in := ruleset.Packet{In: "eth0", Source: peer, Destination: here, Protocol: protocol,
					State: ruleset.ConnNew}
				out := ruleset.Packet{Out: "eth0", Source: here, Destination: peer, Protocol: protocol,
					State: ruleset.ConnNew}
				if got := table.EvalInput(host, in, nil).Accepted(); got != want {
					t.Errorf("%s: protocol %d from %s: %v, want %v", c.name, protocol, peer, got, want)
				}
				if got := table.EvalOutput(host, out, nil).Accepted(); got != want {
					t.Errorf("%s: protocol %d to %s: %v, want %v", c.name, protocol, peer, got, want)
				}
			}
		}
	}
}

// Without neighbour discovery a host could not be reached at its failsafe ports either.
func TestHostEndpointsKeepTheirNeighbours(t *testing.T) {
	here, router := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2")
	deny := []v3.Rule{{Action: v3.Deny}}
	for _, early := range []v3.GlobalNetworkPolicySpec{{}, {DoNotTrack: true}, {PreDNAT: true}} {
		early.Types, early.Ingress, early.Egress = twoTypes, deny, deny
		for _, iface := range []string{"eth0", "*"} {
			set := model.NewSet(hostEndpoint(iface), globalPolicy("deny", early))
			table := Build(Config{Node: testNode}, set, map[string][]netip.Addr{"eth0": {here}}).Table()
			host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
			for kind, want := range map[uint8]bool{128: false, 130: true, 133: true, 134: true, 135: true, 136: true,
				137: false, 143: true} {
				hops := uint8(255)
				if kind < 133 || kind == 143 {
					hops = 1
				}
				in := ruleset.Packet{In: "eth0", Source: router, Destination: here, Protocol: 58, ICMPType: kind,
					State: ruleset.ConnUntracked, HopLimit: hops}
				out := ruleset.Packet{Out: "eth0", Source: here, Destination: router, Protocol: 58, ICMPType: kind,
					State: ruleset.ConnUntracked, HopLimit: hops}
				if got := table.EvalInput(host, in, nil).Accepted(); got != want {
					t.Errorf("%s, %+v: type %d gets in: %v, want %v", iface, early, kind, got, want)
				}
				group := in
				group.Destination = netip.MustParseAddr("ff02::1:ff00:1")
				if got := table.EvalInput(host, group, nil).Accepted(); got != want {
					t.Errorf("%s, %+v: type %d to a group gets in: %v, want %v", iface, early, kind, got, want)
				}
				far := in
				far.HopLimit = 64
				if table.EvalInput(host, far, nil).Accepted() {
					t.Errorf("%s, %+v: type %d gets in after routers", iface, early, kind)
				}
				through := in
				through.Out, through.Destination = "calip", netip.MustParseAddr("fd00::2")
				if (early.DoNotTrack && iface != "*" || early.PreDNAT) &&
					table.Eval(host, ruleset.Prerouting, through, nil).Accepted() {
					t.Errorf("%s, %+v: type %d goes through", iface, early, kind)
				}
				if got := table.EvalOutput(host, out, nil).Accepted(); got != want {
					t.Errorf("%s, %+v: type %d gets out: %v, want %v", iface, early, kind, got, want)
				}
			}
		}
	}
}

// A policy for namespaces or service accounts does not cut off the hosts, which have neither.
func TestSelectorsOfNamespacesAndAccountsAreNotAboutHosts(t *testing.T) {
	host, set := map[string]string{"host": "yes"}, map[string]string{model.LabelNamespace: "a"}
	pod := map[string]string{model.LabelNamespace: "default", model.LabelServiceAccount: "web"}
	for _, c := range []struct {
		spec           v3.GlobalNetworkPolicySpec
		host, set, pod bool
	}{
		{v3.GlobalNetworkPolicySpec{}, true, true, true},
		{v3.GlobalNetworkPolicySpec{Selector: "all()"}, true, true, true},
		{v3.GlobalNetworkPolicySpec{NamespaceSelector: "all()"}, false, true, true},
		{v3.GlobalNetworkPolicySpec{NamespaceSelector: "all()", Selector: "host == 'yes'"}, false, false, false},
		{v3.GlobalNetworkPolicySpec{NamespaceSelector: "x not in {'y'}", Selector: "all()"}, false, true, true},
		{v3.GlobalNetworkPolicySpec{NamespaceSelector: "x not in {'y'}", Selector: "all() && !(x == 'z')"}, false, true,
			true},
		// as in Calico: add has(...) to exclude them
		{v3.GlobalNetworkPolicySpec{NamespaceSelector: "x not in {'y'}"}, true, true, true},
		{v3.GlobalNetworkPolicySpec{ServiceAccountSelector: "all()"}, false, false, true},
		{v3.GlobalNetworkPolicySpec{ServiceAccountSelector: "x != 'y'", Selector: "all()"}, false, false, true},
		{v3.GlobalNetworkPolicySpec{ServiceAccountSelector: "all()", NamespaceSelector: "all()", Selector: "all()"},
			false, false, true},
	} {
		p, err := compile(globalPolicy("p", c.spec), 0)
		if err != nil {
			t.Fatal(err)
		}
		if p.Selector.Matches(host) != c.host || p.Selector.Matches(set) != c.set || p.Selector.Matches(pod) != c.pod {
			t.Errorf("%+v selects %s: want a host %v, what has no account %v, a pod %v", c.spec, p.Selector, c.host,
				c.set, c.pod)
		}
	}
	inside, err := compile(model.NewObject(model.Key{Kind: model.KindNetworkPolicy, Namespace: "default", Name: "p"},
		&v3.NetworkPolicy{Spec: v3.NetworkPolicySpec{ServiceAccountSelector: "all()"}}), 0)
	if err != nil || !inside.Selector.Matches(map[string]string{model.LabelNamespace: "default"}) {
		t.Errorf("a policy of a namespace leaves out what has no account there: %s, %v", inside.Selector, err)
	}
}

// The kernel refuses to reject at postrouting, where packets from the host to services are evaluated.
func TestNothingIsRejectedAtPostrouting(t *testing.T) {
	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	felix.Spec.NftablesFilterDenyAction = "Reject"
	deny := []v3.Rule{{Action: v3.Deny}}
	host := hostEndpoint("eth0")
	host.Value.(*v3.HostEndpoint).Spec.Profiles = []string{"missing"}
	set := model.NewSet(workload("a", "cali1"),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix),
		globalPolicy("deny", v3.GlobalNetworkPolicySpec{Types: twoTypes, Ingress: deny, Egress: deny}))
	c := Build(Config{Node: testNode}, set, map[string][]netip.Addr{"eth0": nil})
	rejects := func(chain string) bool {
		for _, r := range c.Table().Chain(chain).Rules {
			if r.Verdict.Action == ruleset.Reject || r.Verdict.Action == ruleset.RejectTCP {
				return true
			}
		}
		return false
	}
	if !rejects("po/GlobalNetworkPolicy/deny") {
		t.Error("nothing is rejected that a workload sends")
	}
	set[host.Key] = host
	c.Update(set, host.Key)
	for _, chain := range c.Table().Chains() {
		if reachable(c.Table(), "host-out-translated")[chain] && rejects(chain) {
			t.Errorf("%s rejects", chain)
		}
	}
	if !rejects("pi/GlobalNetworkPolicy/deny") {
		t.Error("nothing is rejected that is sent to the host")
	}
	delete(set, host.Key)
	if c.Update(set, host.Key); !rejects("po/GlobalNetworkPolicy/deny") {
		t.Error("nothing is rejected any more")
	}
}

// reachable returns the chains that can be reached from a chain.
func reachable(t *ruleset.Table, from string) map[string]bool {
	seen := map[string]bool{}
	var visit func(string)
	visit = func(name string) {
		if name == "" || seen[name] {
			return
		}
		seen[name] = true
		for _, r := range t.Chain(name).Rules {
			visit(r.Verdict.Chain)
			for _, v := range t.Verdicts(r.Verdict.Map) {
				visit(v.Chain)
			}
		}
	}
	visit(from)
	return seen
}

// Settings for a group of nodes apply as long as this node belongs to the group.
func TestSettingsFollowTheLabelsOfTheNode(t *testing.T) {
	felix := &model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "open"}}
	felix.Spec.NodeSelector, felix.Spec.DefaultEndpointToHostAction = "open == 'yes'", "Accept"
	node := func(labels map[string]string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindNode, testNode),
			&model.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode, Labels: labels}})
	}
	set := model.NewSet(pod("default", "w", "10.0.0.1", nil), namespace("default", nil), node(nil))
	c := Build(Config{Node: testNode}, set, nil)
	here := netip.MustParseAddr("192.0.2.1")
	host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here },
		ReturnInterface: func(netip.Addr) string { return "caliw" }}
	p := ruleset.Packet{In: "caliw", Source: netip.MustParseAddr("10.0.0.1"), Destination: here, Protocol: 6,
		DestinationPort: 80, State: ruleset.ConnNew}
	for _, step := range []struct {
		name string
		o    *model.Object
		gone bool
		open bool
	}{
		{"settings of others", model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "open"), felix), false,
			false},
		{"the node joins them", node(map[string]string{"open": "yes"}), false, true},
		{"the node leaves them", node(nil), false, false},
		{"the node joins them again", node(map[string]string{"open": "yes"}), false, true},
		{"the settings go", model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "open"), felix), true,
			false},
	} {
		if set[step.o.Key] = step.o; step.gone {
			delete(set, step.o.Key)
		}
		c.Update(set, step.o.Key)
		if got := c.Table().EvalInput(host, p, nil).Accepted(); got != step.open {
			t.Errorf("%s: the pod reaches its host: %v, want %v", step.name, got, step.open)
		}
	}
}

// An untracked policy has no effect at the wildcard, and that is said of it alone.
func TestUntrackedPoliciesOfTheWildcardAreIgnored(t *testing.T) {
	away, here := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")
	in := ruleset.Packet{In: "eth0", Source: away, Destination: here, Protocol: 6, SourcePort: 1025,
		DestinationPort: 80}
	early := globalPolicy("early", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, DoNotTrack: true,
		Types: twoTypes, Ingress: allowed})
	other := globalPolicy("other", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, PreDNAT: true,
		Types: twoTypes[:1]})
	host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
	for iface, want := range map[string]struct {
		accepted bool
		ignored  string
	}{
		"eth0": {true, ""},
		"*": {false, `ignored: GlobalNetworkPolicy/early: doNotTrack has no effect at a host endpoint with ` +
			`interfaceName "*"`},
	} {
		h := hostEndpoint(iface)
		c := Build(Config{Node: testNode}, model.NewSet(h, early, other), map[string][]netip.Addr{"eth0": {here}})
		if got := c.Table().EvalInput(host, in, nil).Accepted(); got != want.accepted {
			t.Errorf("%s: accepted %t, want %t", iface, got, want.accepted)
		}
		got := ""
		for k, why := range c.Ignored() {
			if got += why; k != h.Key {
				t.Errorf("%s: %s", k, why)
			}
		}
		if got != want.ignored {
			t.Errorf("%s: %q, want %q", iface, got, want.ignored)
		}
		for _, id := range c.PoliciesOf(h.Key, true) {
			if why := c.WhyIgnored(h.Key, id); (why != "") != (want.ignored != "" && id.Name == "early") {
				t.Errorf("%s: %s: %q", iface, id, why)
			}
		}
	}
}
