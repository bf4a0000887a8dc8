package policy

import (
	"fmt"
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
