package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/datastore/model"
)

// A firewall that closes the port of VXLAN is noticed on a node with a tunnel address, for the family that it is about.
// The port is the cluster's, and the rules see the packets untracked.
func TestFirewallsAndVXLAN(t *testing.T) {
	node := func(name, four, six string, tunnels ...string) *model.Object {
		n := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: four, IPv6Address: six}}}
		for _, a := range tunnels {
			if strings.Contains(a, ":") {
				n.Spec.IPv6VXLANTunnelAddr = a
			} else {
				n.Spec.IPv4VXLANTunnelAddr = a
			}
		}
		return model.NewObject(model.ResourceKey(model.KindNode, name), n)
	}
	felix := &model.FelixConfiguration{}
	felix.Spec.VXLANPort = new(4790)
	const four, six = "VXLAN from other nodes", "VXLAN IPv6 from other nodes"
	other := node("n2", "192.0.2.2/24", "fd16::2/64")
	for _, x := range []struct {
		rule string
		own  *model.Object
		open []uint32 // ports
		want []string
	}{
		{"both families", node("n1", "192.0.2.1/24", "fd16::1/64", "10.0.0.1", "fd10::1"), nil, []string{four, six}},
		{"no tunnel address yet", node("n1", "192.0.2.1/24", "fd16::1/64"), nil, nil},
		{"IPv6 alone", node("n1", "192.0.2.1/24", "fd16::1/64", "fd10::1"), nil, []string{six}},
		{"the port is open", node("n1", "192.0.2.1/24", "", "10.0.0.1"), []uint32{4790}, nil},
		{"another one is", node("n1", "192.0.2.1/24", "", "10.0.0.1"), []uint32{4789}, []string{four}},
	} {
		p := &firewallsPart{Deps: deps.Deps{Node: deps.Node{Name: "n1"}}}
		host := hostfirewall.Host{Uplinks: []string{"eth0"}}
		p.addTunnels(&host, model.NewSet(x.own, other,
			model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix)))
		var rules []hostfirewall.Rule
		for _, port := range x.open {
			rules = append(rules, hostfirewall.Rule{Verdict: hostfirewall.Accept, Matches: []hostfirewall.Match{{
				Field: hostfirewall.DestinationPort, Values: []hostfirewall.Value{{Low: port, High: port}}}}})
		}
		host.Uplinks = nil
		var got []string
		chain := &hostfirewall.Chain{Name: "in", Base: &hostfirewall.Base{Hook: "input", Drop: true}, Rules: rules}
		for _, f := range hostfirewall.Find([]*hostfirewall.Table{{Family: "inet", Name: "other",
			Chains: map[string]*hostfirewall.Chain{"in": chain}}}, host) {
			got = append(got, f.Packets...)
		}
		if strings.Join(got, "; ") != strings.Join(x.want, "; ") {
			t.Errorf("%s: %q, want %q", x.rule, got, x.want)
		}
		for _, l := range host.Local {
			if own := netip.MustParseAddr("192.0.2.1"); l.Packet.State != hostfirewall.StateUntracked ||
				l.Packet.Source.Addr() == own {
				t.Errorf("%s: %+v", x.rule, l.Packet)
			}
		}
	}
}
