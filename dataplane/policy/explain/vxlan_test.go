package explain

import (
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
)

// A datagram to the port of VXLAN is explained as one of the nodes': of a node it is let in, of a stranger the answer
// names the rule. With another port it is a datagram as any other.
func TestVXLANFromOutside(t *testing.T) {
	felix := &model.FelixConfiguration{}
	felix.Spec.VXLANPort, felix.Spec.VXLANVNI = new(4790), new(77)
	set := model.NewSet(node("n1", model.NodeBGPSpec{IPv4Address: "10.0.0.1/24", IPv6Address: "fd00::1/64"}),
		node("n2", model.NodeBGPSpec{IPv4Address: "10.0.0.2/24", IPv6Address: "fd00::2/64"}),
		pool("four", model.IPPoolSpec{CIDR: "10.244.0.0/16", VXLANMode: "Always"}),
		pool("six", model.IPPoolSpec{CIDR: "fd10::/48", VXLANMode: "Always"}),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))
	for _, c := range []struct {
		rule, source string
		port         uint16
		allowed, is  bool
	}{
		{"of a node", "node/n2", 4790, true, true},
		{"of a stranger", "198.51.100.1", 4790, false, true},
		{"of a stranger, IPv6", "2001:db8::1", 4790, false, true},
		{"of a stranger to another port", "198.51.100.1", 4789, true, false},
	} {
		answer, err := Explain(Computed(set, policy.Config{}), Question{Source: c.source, Destination: "node/n1",
			Flow: Flow{Protocol: protoUDP, Port: c.port}})
		if err != nil {
			t.Fatal(err)
		}
		const why = "VXLAN from a host that is no node"
		if answer.Allowed != c.allowed || !c.allowed && !strings.Contains(answer.By, why) {
			t.Errorf("%s: allowed %t by %q, want %t", c.rule, answer.Allowed, answer.By, c.allowed)
		}
		if is := strings.Contains(strings.Join(answer.Notes, "\n"), "VNI 77"); is != c.is {
			t.Errorf("%s: the notes are %q", c.rule, answer.Notes)
		}
	}
}

// A packet between two nodes travels by VXLAN from tunnel address to tunnel address.
func TestVXLANBetweenNodes(t *testing.T) {
	with := func(tunnel string) model.Set {
		return model.NewSet(pool("p", model.IPPoolSpec{CIDR: "10.244.0.0/16", VXLANMode: "Always"}),
			tunnelled("n1", model.NodeBGPSpec{IPv4Address: "10.0.0.1/24"}, "10.244.1.1", ""),
			tunnelled("n2", model.NodeBGPSpec{IPv4Address: "10.0.0.2/24"}, tunnel, ""),
			pod("a", "n1", podA4+"/32"), pod("b", "n2", podB4+"/32"))
	}
	for _, c := range []struct{ rule, source, tunnel, address, next, note string }{
		{"a pod", "pod/default/a", "10.244.2.1", podA4, "via 10.244.2.1 dev vxlan.calico",
			"node n1 sends it by VXLAN to node n2 (10.0.0.2)"},
		{"a node", "node/n1", "10.244.2.1", "10.244.1.1", "via 10.244.2.1 dev vxlan.calico",
			"node n1 sends into the tunnel vxlan.calico from its address there, 10.244.1.1"},
		{"no tunnel address yet", "pod/default/a", "", podA4, "via node n2 dev vxlan.calico",
			"node n2 has published no address of vxlan.calico"},
	} {
		answer, err := Explain(Computed(with(c.tunnel), policy.Config{}), Question{Source: c.source,
			Destination: "pod/default/b"})
		if err != nil {
			t.Fatal(err)
		}
		hop := answer.Hops[len(answer.Hops)-1]
		if answer.Routes[0].Next != c.next || hop.In != "vxlan.calico" || hop.Source.String() != c.address ||
			!strings.Contains(strings.Join(answer.Notes, "\n"), c.note) {
			t.Errorf("%s: %q, arrives at %+v, notes %q", c.rule, answer.Routes[0].Next, hop, answer.Notes)
		}
	}
}
