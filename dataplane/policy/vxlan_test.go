package policy

import (
	"net/netip"
	"slices"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// vxlanFamily has the addresses of one family in a cluster with VXLAN.
type vxlanFamily struct {
	device                          string
	here, node, external, stranger  netip.Addr
	tunnel, service, pod, broadcast netip.Addr // here is the tunnel address, and an address that a service translates
}

var vxlanFamilies = []vxlanFamily{
	{"vxlan.calico", addr("192.0.2.1"), addr("192.0.2.2"), addr("198.51.100.9"), addr("192.0.2.3"),
		addr("10.0.0.1"), addr("192.0.2.1"), addr("10.0.1.5"), addr("192.0.2.255")},
	{"vxlan-v6.calico", addr("fd16::1"), addr("fd16::2"), addr("fd99::9"), addr("fd16::3"),
		addr("fd10::1"), addr("fd16::1"), addr("fd10::1:5"), addr("ff02::1")},
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// vxlanHost says which addresses this host and its devices have.
var vxlanHost = &ruleset.Host{
	IsLocal: func(a netip.Addr) bool {
		return a == vxlanFamilies[0].here || a == vxlanFamilies[1].here || a == vxlanFamilies[0].tunnel ||
			a == vxlanFamilies[1].tunnel
	},
	OwnsAddress: func(device string, a netip.Addr) bool {
		for _, f := range vxlanFamilies {
			if device == f.device {
				return a == f.tunnel
			}
		}
		return false
	},
	SourceFor: func(device string, instead netip.Addr) netip.Addr {
		for _, f := range vxlanFamilies {
			if device == f.device && instead.Is4() == f.here.Is4() {
				return f.tunnel
			}
		}
		return instead
	},
}

// vxlanRules are those of a node in a cluster with two nodes, a network of others that take part, and VXLAN pools.
func vxlanRules(
	devices map[string]TunnelDevice, set func(*model.FelixConfigurationSpec), more ...*model.Object,
) *Calculator {
	return vxlanRulesWith(Config{Node: testNode}, devices, set, more...)
}

// vxlanRulesWith are those with settings of the administrator.
func vxlanRulesWith(
	config Config, devices map[string]TunnelDevice, set func(*model.FelixConfigurationSpec), more ...*model.Object,
) *Calculator {
	felix := &model.FelixConfiguration{}
	felix.Spec.ExternalNodesCIDRList = &[]string{"198.51.100.0/24", "fd99::/64"}
	if set != nil {
		set(&felix.Spec)
	}
	node := func(name, four, six string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindNode, name), &model.Node{Spec: model.NodeSpec{
			BGP: &model.NodeBGPSpec{IPv4Address: four, IPv6Address: six}}})
	}
	pool := func(name, cidr string) *model.Object {
		return model.NewObject(model.ResourceKey(model.KindIPPool, name), &model.IPPool{Spec: model.IPPoolSpec{
			CIDR: cidr, VXLANMode: v3.VXLANModeCrossSubnet, NATOutgoing: true}})
	}
	objects := model.NewSet(append(more, node(testNode, "192.0.2.1/24", "fd16::1/64"),
		node("other", "192.0.2.2/24", "fd16::2/64"), pool("four", "10.0.0.0/16"), pool("six", "fd10::/48"),
		model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix))...)
	c := New(config)
	c.SetInterfaces(map[string][]netip.Addr{"eth0": {vxlanFamilies[0].here, vxlanFamilies[1].here}})
	c.SetTunnels(devices)
	c.Update(objects)
	return c
}

// TestVXLANPackets: outer packets come from nodes and the networks of externalNodesList alone, and are neither tracked
// nor a matter of policies for hosts; those of another network or port are not the cluster's.
func TestVXLANPackets(t *testing.T) {
	const port, vni = 4790, 77
	set := func(s *model.FelixConfigurationSpec) { s.VXLANPort, s.VXLANVNI = new(port), new(vni) }
	type fate struct{ passes, tracked bool }
	for _, ends := range []bool{false, true} { // a host endpoint drops what no policy allows
		var more []*model.Object
		if ends {
			more = append(more, hostEndpoint("eth0"))
		}
		table := vxlanRules(nil, set, more...).Table()
		for _, f := range vxlanFamilies {
			packet := func(from, to netip.Addr, change func(*ruleset.Packet)) ruleset.Packet {
				p := ruleset.Packet{In: "eth0", Out: "eth0", Source: from, Destination: to, Protocol: protoUDP,
					SourcePort: 50001, DestinationPort: port, VXLAN: true, VNI: vni}
				if change != nil {
					change(&p)
				}
				return p
			}
			otherVNI := func(p *ruleset.Packet) { p.VNI++ }
			standard := func(p *ruleset.Packet) { p.DestinationPort = 4789 }
			noVXLAN := func(p *ruleset.Packet) { p.VXLAN = false }
			for _, x := range []struct {
				rule    string
				from    netip.Addr
				to      netip.Addr
				change  func(*ruleset.Packet)
				in, out fate
			}{
				{"of a node", f.node, f.here, nil, fate{true, false}, fate{true, false}},
				{"of externalNodesList", f.external, f.here, nil, fate{true, false}, fate{true, false}},
				{"of a stranger", f.stranger, f.here, nil, fate{false, true}, fate{!ends, true}},
				{"of a stranger to the whole link", f.stranger, f.broadcast, nil, fate{false, true}, fate{!ends, true}},
				{"of another network", f.stranger, f.here, otherVNI, fate{!ends, true}, fate{!ends, true}},
				{"of another network and a node", f.node, f.here, otherVNI, fate{!ends, true}, fate{!ends, true}},
				{"to another port", f.stranger, f.here, standard, fate{!ends, true}, fate{!ends, true}},
				{"to another port, of a node", f.node, f.here, standard, fate{!ends, true}, fate{!ends, true}},
				{"no VXLAN", f.stranger, f.here, noVXLAN, fate{!ends, true}, fate{!ends, true}},
			} {
				in := table.EvalInput(vxlanHost, packet(x.from, x.to, x.change), nil)
				out := table.EvalOutput(vxlanHost, packet(x.to, x.from, x.change), nil)
				if x.to == f.broadcast { // nobody answers from there
					out = table.EvalOutput(vxlanHost, packet(f.here, x.from, x.change), nil)
				}
				for way, got := range map[string]ruleset.Result{"in": in, "out": out} {
					want := x.in
					if way == "out" {
						want = x.out
					}
					if tracked := got.Packet.State != ruleset.ConnUntracked; got.Accepted() != want.passes ||
						tracked != want.tracked {
						t.Errorf("host endpoint %t, %s, %s: %s: passes %t, tracked %t, want %+v", ends, f.device, way,
							x.rule, got.Accepted(), tracked, want)
					}
				}
			}
			// What others forward through this host is theirs.
			p := packet(f.node, f.external, nil)
			if got := table.EvalForward(vxlanHost, p, nil); got.Packet.State == ruleset.ConnUntracked {
				t.Errorf("%s: a packet on its way through this host is not tracked", f.device)
			}
		}
	}
}

// TestVXLANOff: rules are there while the overlay is used, and guard its device while that is up.
func TestVXLANOff(t *testing.T) {
	off := false
	for _, x := range []struct {
		rule    string
		devices map[string]TunnelDevice
		guarded [2]bool // of IPv4, IPv6
	}{
		{"vxlanEnabled is about IPv4 alone", nil, [2]bool{false, true}},
		{"a device that is down", map[string]TunnelDevice{"vxlan.calico": {VNI: 4096}}, [2]bool{false, true}},
		{"a device that is still up", map[string]TunnelDevice{"vxlan.calico": {Up: true}}, [2]bool{true, true}},
	} {
		c := vxlanRules(x.devices, func(s *model.FelixConfigurationSpec) { s.VXLANEnabled = &off })
		for i, f := range vxlanFamilies {
			p := ruleset.Packet{In: "eth0", Source: f.stranger, Destination: f.here, Protocol: protoUDP,
				DestinationPort: 4789, VXLAN: true, VNI: 4096}
			if got := !c.Table().EvalInput(vxlanHost, p, nil).Accepted(); got != x.guarded[i] {
				t.Errorf("%s: %s: dropped: %t, want %t", x.rule, f.device, got, x.guarded[i])
			}
		}
	}
	none := Build(Config{Node: testNode}, model.NewSet(), nil).Table()
	for _, name := range []string{"prerouting-tunnels", "output-tunnels"} {
		if none.Chain(name) != nil {
			t.Errorf("chain %s costs each packet of a node without VXLAN a lookup", name)
		}
	}
}

// TestVXLANDeviceOfFormerSettings: a device that is up is guarded as it is, whatever the settings are by now.
func TestVXLANDeviceOfFormerSettings(t *testing.T) {
	type place struct {
		port uint16
		vni  uint32
	}
	now, former := place{4790, 77}, place{4789, 4096}
	set := func(s *model.FelixConfigurationSpec) { s.VXLANPort, s.VXLANVNI = new(4790), new(77) }
	up := map[string]TunnelDevice{"vxlan.calico": {Up: true, Port: 4789, VNI: 4096}}
	f := vxlanFamilies[0]
	for _, x := range []struct {
		rule    string
		devices map[string]TunnelDevice
		off     bool
		guarded []place
	}{
		{"as the settings are", map[string]TunnelDevice{"vxlan.calico": {Up: true, Port: 4790, VNI: 77}}, false,
			[]place{now}},
		{"another port and VNI", up, false, []place{now, former}},
		{"another one, and switched off", up, true, []place{former}},
		{"another one that is down", map[string]TunnelDevice{"vxlan.calico": {Port: 4789, VNI: 4096}}, false,
			[]place{now}},
	} {
		c := vxlanRules(x.devices, func(s *model.FelixConfigurationSpec) {
			if set(s); x.off {
				s.VXLANEnabled = new(false)
			}
		})
		for _, at := range []place{now, former} {
			p := ruleset.Packet{In: "eth0", Source: f.stranger, Destination: f.here, Protocol: protoUDP,
				DestinationPort: at.port, VXLAN: true, VNI: at.vni}
			want := slices.Contains(x.guarded, at)
			if got := !c.Table().EvalInput(vxlanHost, p, nil).Accepted(); got != want {
				t.Errorf("%s: %+v is dropped: %t, want %t", x.rule, at, got, want)
			}
		}
	}
}

// TestSourcesIntoVXLAN: what this host sends to a workload of another node has the tunnel's address; workloads keep
// theirs there, and outside of the cluster they have the node's.
func TestSourcesIntoVXLAN(t *testing.T) {
	table := vxlanRules(nil, nil).Table()
	for _, f := range vxlanFamilies {
		own := f.tunnel.Next() // a workload here
		for _, x := range []struct {
			rule           string
			from, to, want netip.Addr
		}{
			{"a translated service", f.service, f.pod, f.tunnel},
			{"the tunnel's address", f.tunnel, f.pod, f.tunnel},
			{"a workload", own, f.pod, own},
		} {
			p := ruleset.Packet{Out: f.device, Source: x.from, Destination: x.to, Protocol: protoTCP,
				DestinationPort: 80}
			if got := table.Eval(vxlanHost, ruleset.Postrouting, p, nil); got.Packet.Source != x.want {
				t.Errorf("%s, %s: from %s, want %s", f.device, x.rule, got.Packet.Source, x.want)
			}
		}
		p := ruleset.Packet{Out: "eth0", Source: own, Destination: f.stranger, Protocol: protoTCP, DestinationPort: 80}
		host := *vxlanHost
		host.SourceFor = func(string, netip.Addr) netip.Addr { return f.here }
		if got := table.Eval(&host, ruleset.Postrouting, p, nil); got.Packet.Source != f.here {
			t.Errorf("%s: natOutgoing: from %s, want %s", f.device, got.Packet.Source, f.here)
		}
	}
}

// TestVXLANOfWorkloads: the port of the cluster's devices is closed for workloads, for any network and both families;
// with another vxlanPort 4789 is a port as any other.
func TestVXLANOfWorkloads(t *testing.T) {
	yes := true
	for _, x := range []struct {
		rule               string
		set                func(*model.FelixConfigurationSpec)
		standard, port4790 bool
	}{
		{"by default", nil, false, true},
		{"another port", func(s *model.FelixConfigurationSpec) { s.VXLANPort = new(4790) }, true, false},
		{"allowed", func(s *model.FelixConfigurationSpec) { s.AllowVXLANPacketsFromWorkloads = &yes }, true, true},
		{"switched off", func(s *model.FelixConfigurationSpec) { s.VXLANEnabled = new(false) }, false, true},
	} {
		c := vxlanRules(nil, x.set, pod("default", "w", "10.0.0.7", nil))
		for _, f := range vxlanFamilies {
			for port, want := range map[uint16]bool{4789: x.standard, 4790: x.port4790} {
				for _, to := range []netip.Addr{f.stranger, f.node, f.pod} {
					p := ruleset.Packet{In: "caliw", Out: "eth0", Source: f.tunnel.Next(), Destination: to,
						Protocol: protoUDP, DestinationPort: port, VXLAN: true, VNI: 5}
					got := c.Table().EvalForward(vxlanHost, p, nil)
					if closed := got.By != nil && got.By.CountedBy == droppedTunnel.Counter(); closed == want {
						t.Errorf("%s: %s to port %d: %v, want %t", x.rule, to, port, got.By, want)
					}
				}
			}
		}
	}
}
