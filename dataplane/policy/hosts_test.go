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
	h := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "host"}, Spec: v3.HostEndpointSpec{Node: testNode, InterfaceName: iface}}
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

// What an untracked or pre-DNAT policy of a host endpoint allows needs no other policy of it.
func TestEarlyPoliciesOfHostEndpointsDecide(t *testing.T) {
	away, here := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")
	in := ruleset.Packet{In: "eth0", Source: away, Destination: here, Protocol: 6, SourcePort: 1025, DestinationPort: 80, Mark: decidedMark}
	out := ruleset.Packet{Out: "eth0", Source: here, Destination: away, Protocol: 6, SourcePort: 80, DestinationPort: 1025, Mark: decidedMark}
	through := ruleset.Packet{In: "eth0", Out: "eth1", Source: away, Destination: netip.MustParseAddr("10.0.0.1"), Protocol: 6, DestinationPort: 80, Mark: decidedMark}
	denies := globalPolicy("deny", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, Types: twoTypes})
	untracked := globalPolicy("early", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, DoNotTrack: true, Types: twoTypes, Ingress: allowed, Egress: allowed})
	preDNAT := globalPolicy("early", v3.GlobalNetworkPolicySpec{ApplyOnForward: true, PreDNAT: true, Types: twoTypes[:1], Ingress: allowed})
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

func TestAllNamespacesAreNotHosts(t *testing.T) {
	p, err := Compile(globalPolicy("p", v3.GlobalNetworkPolicySpec{NamespaceSelector: "all()"}))
	if err != nil {
		t.Fatal(err)
	}
	if p.Selector.Matches(map[string]string{"host": "yes"}) || !p.Selector.Matches(map[string]string{model.LabelNamespace: "default"}) {
		t.Errorf("selects %s", p.Selector)
	}
}
