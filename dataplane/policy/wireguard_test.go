package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

func encrypting(s *model.FelixConfigurationSpec) {
	s.WireguardEnabled, s.WireguardEnabledV6 = new(true), new(true)
}

// Encrypted packets prove who sent them, so every host may send them to this one, also where a policy for hosts drops
// all others.
func TestEncryptedPacketsComeFromAnywhere(t *testing.T) {
	for _, on := range []bool{false, true} {
		set := encrypting
		if !on {
			set = func(*model.FelixConfigurationSpec) {}
		}
		c := vxlanRules(nil, set, hostEndpoint("eth0"))
		for i, f := range vxlanFamilies {
			for _, x := range []struct {
				port uint16
				want bool
			}{{51820, on && i == 0}, {51821, on && i == 1}, {51822, false}} {
				in := ruleset.Packet{In: "eth0", Source: f.stranger, Destination: f.here, Protocol: protoUDP,
					DestinationPort: x.port, State: ruleset.ConnNew}
				if got := c.Table().EvalInput(vxlanHost, in, nil).Accepted(); got != x.want {
					t.Errorf("on %t: from %s to port %d: %t", on, f.stranger, x.port, got)
				}
				out := ruleset.Packet{Out: "eth0", Source: f.here, Destination: f.stranger, Protocol: protoUDP,
					DestinationPort: x.port, State: ruleset.ConnNew}
				if got := c.Table().EvalOutput(vxlanHost, out, nil).Accepted(); got != x.want {
					t.Errorf("on %t: to %s, port %d: %t", on, f.stranger, x.port, got)
				}
			}
		}
	}
}

// Packets of other nodes to this host that come in plain, and those of the tunnel itself, get the mark that keeps the
// way back to their source out of the tunnel; forwarded ones do not. Packets that this host sends to nodes from another
// address than the node's get it, too.
func TestPlainPacketsBetweenNodes(t *testing.T) {
	const mark = 0x200000
	for _, on := range []bool{false, true} {
		c := vxlanRules(nil, func(s *model.FelixConfigurationSpec) {
			encrypting(s)
			s.WireguardHostEncryptionEnabled = &on
		})
		for i, f := range vxlanFamilies {
			device := []string{"wireguard.cali", "wg-v6.cali"}[i]
			for _, x := range []struct {
				rule   string
				hook   ruleset.Hook
				packet ruleset.Packet
				want   bool
			}{
				{"from a node", ruleset.Prerouting, ruleset.Packet{In: "eth0", Source: f.node, Destination: f.here},
					true},
				{"by the tunnel", ruleset.Prerouting, ruleset.Packet{In: device, Source: f.node, Destination: f.here},
					false},
				{"from a pod", ruleset.Prerouting, ruleset.Packet{In: "calix", Source: f.node, Destination: f.here},
					false},
				{"from elsewhere", ruleset.Prerouting, ruleset.Packet{In: "eth0", Source: f.stranger,
					Destination: f.here}, false},
				{"to a pod", ruleset.Prerouting, ruleset.Packet{In: "eth0", Source: f.node, Destination: f.pod}, false},
				{"of the tunnel", ruleset.Prerouting, ruleset.Packet{In: "eth0", Source: f.stranger,
					Destination: f.here, DestinationPort: uint16(51820 + i)}, true},
				{"from this node", ruleset.Output, ruleset.Packet{Out: "eth0", Source: f.here, Destination: f.node},
					false},
				{"from another address", ruleset.Output, ruleset.Packet{Out: "eth0", Source: f.tunnel,
					Destination: f.node}, f.tunnel != f.here},
				{"to others", ruleset.Output, ruleset.Packet{Out: "eth0", Source: f.tunnel, Destination: f.stranger},
					false},
			} {
				x.packet.Protocol = protoUDP
				if x.hook == ruleset.Output { // by the tunnel, which keeps the address where the peer knows it
					p, host := x.packet, *vxlanHost
					p.Out, p.State = device, ruleset.ConnNew
					host.SourceFor = func(string, netip.Addr) netip.Addr { return f.stranger }
					got := c.Table().EvalOutput(&host, p, nil).Packet.Source
					if same := got == p.Source; same != (on && p.Source == f.here) {
						t.Errorf("on %t, family %d: %s: the source %s becomes %s", on, i, x.rule, p.Source, got)
					}
				}
				got := c.Table().Eval(vxlanHost, x.hook, x.packet, nil).Packet.Mark
				if want := on && x.want; (got == mark) != want || got&^mark != 0 {
					t.Errorf("on %t, family %d: %s: 0x%x", on, i, x.rule, got)
				}
			}
		}
	}
}

// Where encryption is required, packets of workloads to addresses of pools leave by WireGuard or not at all.
func TestRequiredEncryption(t *testing.T) {
	four := func(s *model.FelixConfigurationSpec) { s.WireguardEnabled = new(true) }
	for _, required := range []bool{false, true} {
		for name, set := range map[string]func(*model.FelixConfigurationSpec){"off": nil, "both": encrypting,
			"four": four} {
			c := vxlanRulesWith(Config{Node: testNode, EncryptionRequired: required}, nil, set,
				pod("default", "w", "10.0.0.7", nil))
			for i, f := range vxlanFamilies {
				tunnel, plain := []string{"wireguard.cali", "wg-v6.cali"}[i], true
				if required && (name == "both" || name == "four" && i == 0) {
					plain = false
				}
				for _, x := range []struct {
					out     string
					outside bool // to an address of no pool
					want    bool
				}{{"eth0", false, plain}, {f.device, false, plain}, {tunnel, false, true}, {"calix", false, true},
					{"eth0", true, true}} {
					p := ruleset.Packet{In: "caliw", Out: x.out, Source: f.tunnel.Next(), Destination: f.pod,
						Protocol: protoTCP, DestinationPort: 80, State: ruleset.ConnEstablished}
					if x.outside {
						p.Destination = f.external
					}
					got := c.Table().EvalForward(vxlanHost, p, nil)
					dropped := got.By != nil && got.By.CountedBy == droppedPlain.Counter()
					if what := fmt.Sprintf("required %t, %s", required, name); dropped == x.want {
						t.Errorf("%s: to %s by %s: %v", what, p.Destination, x.out, got.By)
					}
				}
			}
		}
	}
}
