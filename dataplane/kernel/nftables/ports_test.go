package nftables

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// The kernel accepts ports but ignores them unless a flag marks them as valid.
func TestTranslatedPorts(t *testing.T) {
	ns, n := rulesNS(t)
	for _, neighbour := range []string{"10.1.0.9", "fd01::9"} {
		nettest.Run(t, "ip", "-n", ns, "neigh", "replace", neighbour, "lladdr", "02:00:00:00:00:09", "dev", "e0")
	}
	udp := ruleset.Match{Field: ruleset.Protocol, Low: unix.IPPROTO_UDP}
	v4, v6 := netip.MustParseAddrPort("10.1.0.9:53"), netip.MustParseAddrPort("[fd01::9]:53")
	for _, x := range []struct {
		name    string
		to      netip.AddrPort
		family  ruleset.Match
		verdict ruleset.Verdict
	}{
		{"masquerade", v4, ipv4, ruleset.Verdict{Action: ruleset.Masquerade, Low: 61000, High: 61010}},
		{"masquerade at random", v4, ipv4, ruleset.Verdict{Action: ruleset.Masquerade, Low: 61000, High: 61010,
			Random: true}},
		{"masquerade IPv6", v6, ipv6, ruleset.Verdict{Action: ruleset.Masquerade, Low: 61000, High: 61010,
			Random: true}},
		{"snat", v4, ipv4, ruleset.Verdict{Action: ruleset.SNAT, Address: addr("10.1.0.5"), Low: 61000, High: 61010}},
		{"snat IPv6 at random", v6, ipv6, ruleset.Verdict{Action: ruleset.SNAT, Address: addr("fd01::5"), Low: 61000,
			High: 61010, Random: true}},
	} {
		w := ruleset.NewTable()
		w.SetChain(&ruleset.Chain{Name: "nat", Base: &ruleset.Base{Hook: ruleset.Postrouting, Type: ruleset.NAT,
			Priority: 100},
			Rules: []ruleset.Rule{{Matches: []ruleset.Match{x.family, udp}, Verdict: x.verdict}}})
		w.SetChain(&ruleset.Chain{Name: "after", Base: &ruleset.Base{Hook: ruleset.Postrouting, Type: ruleset.Filter,
			Priority: 200},
			Rules: []ruleset.Rule{{Matches: []ruleset.Match{udp, {Field: ruleset.SourcePort, Low: 61000, High: 61010}},
				Counter: true}}})
		if err := n.DeleteRules(); err != nil {
			t.Fatal(err)
		}
		if _, err := conntrack.New(n.namespace).ForgetConnections([]netip.Addr{x.to.Addr()}); err != nil {
			t.Fatal(err)
		}
		commitRules(t, n, w.Difference(nil))
		if err := n.namespace.Do(sentPacket{destination: x.to}.send); err != nil {
			t.Fatal(err)
		}
		counters, err := n.RuleCounters()
		if err != nil {
			t.Fatal(err)
		}
		if c := counters["after"]; len(c) != 1 || c[0].Packets != 1 {
			t.Errorf("%s: packets from the range of ports: %+v, want 1", x.name, c)
		}
	}
}
