package policy

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// An overlay is a line in a list: one with IPv6 and a UDP port has the same rules as that of this version.
func TestASecondOverlay(t *testing.T) {
	here, node, stranger := netip.MustParseAddr("fd16::1"), netip.MustParseAddr("fd16::2"),
		netip.MustParseAddr("fd16::3")
	on := true
	second := overlay.Overlay{Name: "Second", Device: "second.test", Family: model.IPv6,
		Packets: func(*model.FelixConfigurationSpec) overlay.Packets {
			return overlay.Packets{Name: "Second", Protocol: protoUDP, Port: 5555}
		},
		Settings: func(*model.FelixConfigurationSpec) overlay.Settings { return overlay.Settings{On: &on} }}
	other := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv6Address: node.String() + "/64"}}}
	objects := []*model.Object{model.NewObject(model.ResourceKey(model.KindNode, "other"), other)}
	host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
	for _, c := range []struct {
		rule           string
		used, up, ends bool
		node, stranger bool
	}{
		{"in use", true, false, false, true, false},
		{"not in use any more, but its device is up", false, true, false, true, false},
		{"gone", false, false, false, true, true},
		{"in use, beside a host endpoint", true, true, true, true, false},
		{"gone, beside a host endpoint", false, false, true, false, false},
	} {
		on = c.used
		list := slices.Clone(objects)
		if c.ends {
			list = append(list, hostEndpoint("eth0"))
		}
		calc := New(Config{Node: testNode, Overlays: append(slices.Clone(overlay.All()), second)})
		calc.SetInterfaces(map[string][]netip.Addr{"eth0": {here}})
		calc.SetTunnels(map[string]TunnelDevice{"second.test": {Up: c.up}})
		calc.Update(model.NewSet(list...))
		for from, want := range map[netip.Addr]bool{node: c.node, stranger: c.stranger} {
			p := ruleset.Packet{In: "eth0", Source: from, Destination: here, Protocol: protoUDP, DestinationPort: 5555,
				State: ruleset.ConnNew}
			if got := calc.Table().EvalInput(host, p, nil).Accepted(); got != want {
				t.Errorf("%s: from %s: %t, want %t", c.rule, from, got, want)
			}
			p.DestinationPort++
			if got := calc.Table().EvalInput(host, p, nil).Accepted(); got == c.ends {
				t.Errorf("%s: another port from %s: %t", c.rule, from, got)
			}
		}
	}
}
