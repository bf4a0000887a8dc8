package policy

import (
	"fmt"
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
)

// A rule that excludes networks of one family only is a rule for that family.
func TestExcludedNetworksBelongToOneFamily(t *testing.T) {
	for _, c := range []struct {
		name              string
		rule              v3.Rule
		four, inside, six bool // allowed by IPv4, from the excluded network, by IPv6
	}{
		{"of IPv4", v3.Rule{Source: v3.EntityRule{NotNets: []string{"10.1.0.0/16"}}}, true, false, false},
		{"of IPv6", v3.Rule{Source: v3.EntityRule{NotNets: []string{"2001:db8::/32"}}}, false, false, true},
		{"of both", v3.Rule{Source: v3.EntityRule{NotNets: []string{"10.1.0.0/16", "2001:db8::/32"}}}, true, false,
			true},
		{"of the destination", v3.Rule{Destination: v3.EntityRule{NotNets: []string{"10.1.0.0/16"}}}, true, true,
			false},
		{"all of IPv4, in halves", v3.Rule{Source: v3.EntityRule{NotNets: []string{"0.0.0.0/1", "128.0.0.0/1"}}}, false,
			false, false},
		{"of IPv4, for ICMPv6", v3.Rule{Protocol: protocolOf("ICMPv6"),
			Source: v3.EntityRule{NotNets: []string{"10.1.0.0/16"}}}, false, false, false},
	} {
		c.rule.Action = v3.Allow
		w := pod("default", "w", "10.0.0.1", nil)
		w.Value.(*model.WorkloadEndpoint).Spec.IPNetworks = []string{"10.0.0.1", "fd00::1"}
		set := model.NewSet(w, namespace("default", nil),
			globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{c.rule}}))
		calc := Build(Config{Node: testNode}, set, nil)
		for source, want := range map[string]bool{"10.2.0.1": c.four, "10.1.0.1": c.inside, "fd00::2": c.six} {
			destination := "10.0.0.1"
			if netip.MustParseAddr(source).Is6() {
				destination = "fd00::1"
			}
			if got := reaches(calc, source, destination, "caliw", 80); got != want {
				t.Errorf("%s: from %s: %v, want %v", c.name, source, got, want)
			}
		}
	}
}

// Of two endpoints with the same address it is enough that one is selected. An exclusion without a selection is about
// addresses.
func TestExcludedSelectorsBesideOthersAreAboutThoseThatAreMeant(t *testing.T) {
	netset := func(name string, nets ...string) *model.Object {
		s := &v3.GlobalNetworkSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": name}},
			Spec: v3.GlobalNetworkSetSpec{Nets: nets}}
		return model.NewObject(model.ResourceKey(model.KindGlobalNetworkSet, name), s)
	}
	named := func(name string) []numorstring.Port { return []numorstring.Port{numorstring.NamedPort(name)} }
	for _, c := range []struct {
		name                    string
		source                  v3.EntityRule
		good, bad, both, nobody bool
	}{
		{"both", v3.EntityRule{Selector: "has(role)", NotSelector: "role == 'bad'"}, true, false, true, false},
		{"alone", v3.EntityRule{NotSelector: "role == 'bad'"}, true, false, false, true},
		{"everybody", v3.EntityRule{Selector: "all()", NotSelector: "role == 'bad'"}, true, false, true, false},
		{"nobody is excluded", v3.EntityRule{Selector: "has(role)", NotSelector: "role == 'none'"}, true, true, true,
			false},
		{"alone, nobody is excluded", v3.EntityRule{NotSelector: "role == 'none'"}, true, true, true, true},
		{"a named port that nobody has", v3.EntityRule{NotSelector: "role == 'none'", NotPorts: named("none")}, true,
			true, true, true},
		{"only ports that nobody has", v3.EntityRule{NotSelector: "role == 'none'", Ports: named("none")}, false, false,
			false, false},
	} {
		set := model.NewSet(pod("default", "w", "10.0.0.1", nil), namespace("default", nil),
			netset("good", "10.1.0.0/16", "10.3.0.1"), netset("bad", "10.2.0.0/16", "10.3.0.0/24"),
			globalPolicy("p", v3.GlobalNetworkPolicySpec{
				Types: twoTypes[:1], Ingress: []v3.Rule{
					{Action: v3.Allow, Protocol: protocolOf("TCP"), Source: c.source}}}))
		calc := Build(Config{Node: testNode}, set, nil)
		for source, want := range map[string]bool{"10.1.0.1": c.good, "10.2.0.1": c.bad, "10.3.0.1": c.both,
			"10.9.0.1": c.nobody} {
			if got := reaches(calc, source, "10.0.0.1", "caliw", 80); got != want {
				t.Errorf("%s: from %s: %v, want %v", c.name, source, got, want)
			}
		}
	}
}

// A rule with any number of port names at both ends stays a handful of rules in the kernel: an author of policies for
// one namespace must not be able to flood the nodes.
func TestManyNamesOfPortsAreFewRules(t *testing.T) {
	var names []numorstring.Port
	for i := range 50 {
		names = append(names, numorstring.NamedPort(fmt.Sprint("p", i)))
	}
	ends := v3.EntityRule{Ports: append(names, numorstring.SinglePort(7), numorstring.SinglePort(9))}
	server := pod("default", "w", "10.0.0.1", nil)
	server.Value.(*model.WorkloadEndpoint).Spec.Ports = []model.EndpointPort{
		{Name: "p0", Protocol: *protocolOf("TCP"), Port: 80}, {Name: "p49", Protocol: *protocolOf("TCP"), Port: 81},
		{Name: "p50", Protocol: *protocolOf("TCP"), Port: 82},
		{Name: "p1", Protocol: *protocolOf("UDP"), Port: 83}}
	rule := v3.Rule{Action: v3.Allow, Protocol: protocolOf("TCP"), Source: ends, Destination: ends}
	set := model.NewSet(server, namespace("default", nil),
		globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{rule}}))
	calc := Build(Config{Node: testNode}, set, nil)
	if n := len(calc.Table().Chain("pi/GlobalNetworkPolicy/p").Rules); n > 8 {
		t.Errorf("one rule became %d", n)
	}
	rule.Source = v3.EntityRule{}
	rule.Destination.NotPorts = names[49:50]
	p := globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{rule}})
	set[p.Key] = p
	calc.Update(set, p.Key)
	for port, want := range map[uint16]bool{7: true, 8: false, 9: true, 80: true, 81: false, 82: false, 83: false} {
		if got := reaches(calc, "192.0.2.1", "10.0.0.1", "caliw", port); got != want {
			t.Errorf("port %d: %v, want %v", port, got, want)
		}
	}
}

// A rule with any error in its ports never becomes a rule for all ports.
func TestPortsThatAreNoneMatchNothing(t *testing.T) {
	reversed := numorstring.Port{MinPort: 90, MaxPort: 80}
	for _, ends := range [][2]v3.EntityRule{{{}, {Ports: []numorstring.Port{reversed}}},
		{{Ports: []numorstring.Port{reversed}}, {}}} {
		rule := v3.Rule{Action: v3.Allow, Protocol: protocolOf("TCP"), Source: ends[0], Destination: ends[1]}
		set := model.NewSet(pod("default", "w", "10.0.0.1", nil), namespace("default", nil),
			globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{rule}}))
		calc := Build(Config{Node: testNode}, set, nil)
		for _, port := range []uint16{79, 80, 85, 90, 91} {
			if reaches(calc, "192.0.2.1", "10.0.0.1", "caliw", port) {
				t.Errorf("%+v: port %d is open", ends, port)
			}
		}
	}
}

func protocolOf(name string) *numorstring.Protocol {
	p := numorstring.ProtocolFromString(name)
	return &p
}
