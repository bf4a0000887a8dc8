package policy

import (
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/datastore/model"
)

// A rule that excludes networks of one family only is about that family.
func TestExcludedNetworksBelongToOneFamily(t *testing.T) {
	for _, c := range []struct {
		name              string
		rule              v3.Rule
		four, inside, six bool // allowed by IPv4, from the excluded network, by IPv6
	}{
		{"of IPv4", v3.Rule{Source: v3.EntityRule{NotNets: []string{"10.1.0.0/16"}}}, true, false, false},
		{"of IPv6", v3.Rule{Source: v3.EntityRule{NotNets: []string{"2001:db8::/32"}}}, false, false, true},
		{"of both", v3.Rule{Source: v3.EntityRule{NotNets: []string{"10.1.0.0/16", "2001:db8::/32"}}}, true, false, true},
		{"of the destination", v3.Rule{Destination: v3.EntityRule{NotNets: []string{"10.1.0.0/16"}}}, true, true, false},
		{"all of IPv4, in halves", v3.Rule{Source: v3.EntityRule{NotNets: []string{"0.0.0.0/1", "128.0.0.0/1"}}}, false, false, false},
		{"of IPv4, for ICMPv6", v3.Rule{Protocol: protocolOf("ICMPv6"), Source: v3.EntityRule{NotNets: []string{"10.1.0.0/16"}}}, false, false, false},
	} {
		c.rule.Action = v3.Allow
		w := pod("default", "w", "10.0.0.1", nil)
		w.Value.(*model.WorkloadEndpoint).Spec.IPNetworks = []string{"10.0.0.1", "fd00::1"}
		set := model.NewSet(w, namespace("default", nil), globalPolicy("p", v3.GlobalNetworkPolicySpec{Types: twoTypes[:1], Ingress: []v3.Rule{c.rule}}))
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

func protocolOf(name string) *numorstring.Protocol {
	p := numorstring.ProtocolFromString(name)
	return &p
}
