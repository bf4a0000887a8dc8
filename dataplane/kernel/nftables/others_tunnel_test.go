package nftables

import (
	"net/netip"
	"testing"

	"github.com/manxnet/manx/dataplane/hostfirewall"
)

// The page about firewalls says which rules about packets of VXLAN make a notice: those whose conditions are known and
// hold for all packets of a node.
func TestRulesAboutTunnels(t *testing.T) {
	ns, c := forwarding(t)
	const no, certain, doubt = "", "drops", "may drop"
	packets := []hostfirewall.LocalPackets{{What: "VXLAN", Packet: hostfirewall.Packet{
		In: hostfirewall.Interface{Name: "eth0"}, Source: netip.MustParsePrefix("10.1.0.2/32"),
		Destination: netip.MustParsePrefix("10.1.0.1/32"), Protocol: 17, DestinationPort: 4789,
		State: hostfirewall.StateUntracked}}}
	for _, x := range []struct{ policy, rule, want string }{
		{"accept", "udp dport 4789 drop", certain},
		{"accept", "udp dport { 22, 4000-5000 } drop", certain},
		{"accept", "udp dport vmap { 4789 : drop }", certain},
		{"accept", "ip saddr 10.1.0.2 ip daddr 10.1.0.1 udp dport 4789 drop", certain},
		{"accept", "ip saddr 10.1.0.7 udp dport 4789 drop", no},
		{"accept", "ct state invalid drop", no},
		{"accept", "udp sport 1024-65535 drop", no},
		{"accept", "udp dport @ports drop", no},
		{"accept", "ip saddr . udp dport { 10.1.0.2 . 4789 } drop", no},
		{"accept", "udp dport 4789 limit rate over 10/second drop", no},
		{"drop", "ct state new accept", certain},
		{"drop", "iifname eth1 udp dport 4789 accept", certain},
		{"drop", "udp dport 4789 accept", no},
		{"drop", "udp dport @ports accept", doubt},
	} {
		sh(t, ns, "nft flush ruleset\n"+nftScript("table inet x {\n"+
			"set ports {\ntype inet_service; elements = { 4789 }\n}\n"+
			"chain i {\ntype filter hook input priority 0; policy "+x.policy+";\n"+x.rule+"\n}\n}"))
		tables, err := c.ReadOthers(func(uint32) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		got := no
		for _, f := range hostfirewall.Find(tables, hostfirewall.Host{Local: packets}) {
			if got = certain; !f.Certain {
				got = doubt
			}
		}
		if got != x.want {
			t.Errorf("%s, policy %s: %q, want %q", x.rule, x.policy, got, x.want)
		}
	}
}
