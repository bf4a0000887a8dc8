package policy

import (
	"net/netip"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// Tunnelled packets are accepted where routes use a tunnel, from the addresses of the routes' next hops.
func TestTunnelsAsRoutesHaveThem(t *testing.T) {
	here, peer := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	spec := func(set func(*model.IPPoolSpec)) model.IPPoolSpec {
		s := model.IPPoolSpec{CIDR: "10.0.0.0/16", IPIPMode: v3.IPIPModeAlways}
		if set != nil {
			set(&s)
		}
		return s
	}
	for _, c := range []struct {
		rule, address string
		pool          model.IPPoolSpec
		want          bool
	}{
		{"with the length of the subnet", "192.0.2.2/24", spec(nil), true},
		{"a bare address", "192.0.2.2", spec(nil), true},
		{"IPv4 in IPv6 form", "::ffff:192.0.2.2", spec(nil), true},
		{"IPv4 in IPv6 form with a length", "::ffff:192.0.2.2/120", spec(nil), true},
		{"another node", "192.0.2.3/24", spec(nil), false},
		{"a disabled pool counts", "192.0.2.2/24", spec(func(s *model.IPPoolSpec) { s.Disabled = true }), true},
		{"a pool for load balancers has no tunnel", "192.0.2.2/24", spec(func(s *model.IPPoolSpec) {
			s.AllowedUses = []v3.IPPoolAllowedUse{v3.IPPoolAllowedUseLoadBalancer}
		}), false},
		{"nor has one with a mode that nobody knows", "192.0.2.2/24",
			spec(func(s *model.IPPoolSpec) { s.IPIPMode = "Sometimes" }), false},
	} {
		node := &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: c.address}}}
		set := model.NewSet(hostEndpoint("eth0"), model.NewObject(model.ResourceKey(model.KindNode, "other"), node),
			model.NewObject(model.ResourceKey(model.KindIPPool, "pool"), &model.IPPool{Spec: c.pool}))
		table := Build(Config{Node: testNode}, set, map[string][]netip.Addr{"eth0": {here}}).Table()
		host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
		in := ruleset.Packet{In: "eth0", Source: peer, Destination: here, Protocol: 4, State: ruleset.ConnNew}
		if got := table.EvalInput(host, in, nil).Accepted(); got != c.want {
			t.Errorf("%s: IPIP is let in: %t, want %t", c.rule, got, c.want)
		}
	}
}
