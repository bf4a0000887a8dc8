package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/firewalls"
	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/datastore/model"
)

// A firewall that closes the port of VXLAN, for packets that come or that go, is noticed on a node with a tunnel
// address, for the family that it is about. The port is the cluster's, and the rules see the packets untracked.
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
	const four, six = "VXLAN %s other nodes through eth0", "VXLAN IPv6 %s other nodes through eth0"
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
			model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix)),
			firewalls.NewWays(func(netip.Addr) string { return "" }))
		var rules []hostfirewall.Rule
		for _, port := range x.open {
			rules = append(rules, hostfirewall.Rule{Verdict: hostfirewall.Accept, Matches: []hostfirewall.Match{{
				Field: hostfirewall.DestinationPort, Values: []hostfirewall.Value{{Low: port, High: port}}}}})
		}
		host.Uplinks = nil
		for hook, way := range map[string]string{"input": "from", "output": "to"} {
			var got []string
			chain := &hostfirewall.Chain{Name: "c", Base: &hostfirewall.Base{Hook: hook, Drop: true}, Rules: rules}
			for _, f := range hostfirewall.Find([]*hostfirewall.Table{{Family: "inet", Name: "other",
				Chains: map[string]*hostfirewall.Chain{"c": chain}}}, host) {
				got = append(got, f.Packets...)
			}
			if want := strings.ReplaceAll(strings.Join(x.want, "; "), "%s", way); strings.Join(got, "; ") != want {
				t.Errorf("%s, %s: %q, want %q", x.rule, hook, got, want)
			}
		}
		for _, l := range host.Local {
			if l.Packet.State != hostfirewall.StateUntracked || l.Packet.Source == l.Packet.Destination {
				t.Errorf("%s: %+v", x.rule, l.Packet)
			}
		}
	}
}

// The uplinks of a node without BGP are the interfaces of the routes to the other nodes, and VXLAN of each node comes
// by its own one. Without any node there is the default route.
func TestUplinksToOtherNodes(t *testing.T) {
	node := func(name, address string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindNode, name), &model.Node{Spec: model.NodeSpec{
			BGP: &model.NodeBGPSpec{IPv4Address: address}, IPv4VXLANTunnelAddr: "10.244.0.1"}})
	}
	routes := map[string]string{"10.1.0.2": "eth1", "10.2.0.3": "eth2", "10.3.0.4": "", "10.1.0.1": "lo",
		"10.4.0.5": "wireguard.cali", "192.0.2.1": "eth0", "2001:db8::1": "eth0"}
	for _, x := range []struct {
		rule  string
		nodes []*model.Object
		want  string // uplinks
		in    string // interfaces of the packets of VXLAN
	}{
		{"two racks", []*model.Object{node("n2", "10.1.0.2/24"), node("n3", "10.2.0.3/24")},
			"eth1 eth2 vxlan.calico", "eth1 eth2"},
		{"one without a route", []*model.Object{node("n2", "10.1.0.2/24"), node("n4", "10.3.0.4/24")},
			"eth1 vxlan.calico", "eth1 eth1"},
		{"no route to any", []*model.Object{node("n4", "10.3.0.4/24")}, "eth0 vxlan.calico", "eth0"},
		{"this host's address, and a tunnel", []*model.Object{node("n0", "10.1.0.1/24"), node("n2", "10.1.0.2/24"),
			node("n5", "10.4.0.5/24")}, "eth1 vxlan.calico", "eth1 eth1"},
		{"no other node", nil, "eth0", ""},
	} {
		p := &firewallsPart{Deps: deps.Deps{Node: deps.Node{Name: "n1"}},
			sessions: func() []speaker.SessionStatus { return nil },
			route:    func(a netip.Addr) string { return routes[a.String()] }}
		var host hostfirewall.Host
		r, ways := model.NewSet(append(x.nodes, node("n1", "10.1.0.1/24"))...), firewalls.NewWays(p.uplinkTo)
		p.addUplinks(&host, r, ways)
		p.addTunnels(&host, r, ways)
		var in []string
		for _, l := range host.Local {
			if own := netip.MustParsePrefix("10.1.0.1/32"); l.Packet.Destination == own {
				in = append(in, l.Packet.In.Name)
			} else if l.Packet.Source != own || l.Packet.Out.Name != in[len(in)-1] {
				t.Errorf("%s: packets of VXLAN %+v", x.rule, l.Packet)
			}
		}
		if got := strings.Join(host.Uplinks, " "); got != x.want || strings.Join(in, " ") != x.in {
			t.Errorf("%s: uplinks %s, packets by %s; want %s, %s", x.rule, got, in, x.want, x.in)
		}
	}
}
