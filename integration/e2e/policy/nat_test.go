package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testTranslation queries servers on other hosts for the client's address: it is the pod's own or one of its host, as
// pools and FelixConfiguration have it.
func (c *cluster) testTranslation(t *testing.T) {
	a, far, n1, n2 := c.Pods["a"], c.Pods["far"], c.N1, c.N2
	const port = 7701
	for _, ns := range []string{c.ToR1.Namespace, n1.Namespace, far.Namespace} {
		echo(t, ns, port)
	}
	spare := netip.MustParseAddr("10.200.1.99")
	world.IP(t, n2, fmt.Sprintf("-n %s addr add %s/32 dev lo", n2.Namespace, spare))
	for i, via := range both(n2.IP4, n2.IP6) { // for untranslated packets
		world.IP(t, n2, fmt.Sprintf("-n %s route add %s via %s", c.ToR1.Namespace, both(a.IP4(), a.IP6())[i], via))
	}
	outside := both(c.ToR1.Address(n2), c.ToR1.Address6(n2))
	pool := func(name string, cidr netip.Prefix, size int, nat bool) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: %s}\n"+
			"spec: {cidr: %q, blockSize: %d, natOutgoing: %v}\n---\n", name, cidr, size, nat)
	}
	type ends struct{ outside, node, pod []netip.Addr } // of each family
	own, host := both(a.IP4(), a.IP6()), both(n2.IP4, n2.IP6)
	for _, x := range []struct {
		name, objects string
		want          ends
		low, high     uint16
	}{
		{"nothing is said", "", ends{host, host, own}, 0, 0},
		{"nodes are no outside", felix("default", "natOutgoingExclusions: IPPoolsAndHostIPs"), ends{host, own, own}, 0,
			0},
		{"a range of ports", felix("default", `natPortRange: "61000:61010"`), ends{host, host, own}, 61000, 61010},
		{"another address", felix("default", "natOutgoingAddress: "+spare.String()),
			ends{[]netip.Addr{spare, n2.IP6}, []netip.Addr{spare, n2.IP6}, own}, 0, 0},
		{"another address and a range of ports", felix("default", `natPortRange: "61000:61010", natOutgoingAddress: `+
			spare.String()),
			ends{[]netip.Addr{spare, n2.IP6}, []netip.Addr{spare, n2.IP6}, own}, 61000, 61010},
		{"through this interface", felix("default", `iptablesNATOutgoingInterfaceFilter: "eth+"`),
			ends{host, host, own}, 0, 0},
		{"through another interface only", felix("default", "iptablesNATOutgoingInterfaceFilter: eth7"),
			ends{own, own, own}, 0, 0},
		{"one pool without", pool("pods4", world.Pool4, 26, false),
			ends{[]netip.Addr{a.IP4(), n2.IP6}, []netip.Addr{a.IP4(), n2.IP6}, own}, 0, 0},
		{"no pool with it", pool("pods4", world.Pool4, 26, false) + pool("pods6", world.Pool6, 122, false), ends{own,
			own, own}, 0,
			0},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.objects != "" {
				c.temporary(t, documents(t, x.objects)...)
			}
			for i := range outside {
				for _, e := range []struct {
					name string
					to   netip.Addr
					want netip.Addr
				}{
					{"outside", outside[i], x.want.outside[i]},
					{"another node", both(n1.IP4, n1.IP6)[i], x.want.node[i]},
					{"a pod", both(far.IP4(), far.IP6())[i], x.want.pod[i]},
				} {
					reply, err := requestEcho(a.Namespace, at(e.to, port), 5*time.Second)
					var from netip.AddrPort
					if _, text, ok := strings.Cut(reply, "from "); ok {
						from, _ = netip.ParseAddrPort(text)
					}
					if from.Addr() != e.want {
						t.Errorf("%s (%s) is queried by %s, want %s; %v", e.name, e.to, from, e.want, err)
					}
					if x.high > 0 && e.want != own[i] && (from.Port() < x.low || from.Port() > x.high) {
						t.Errorf("%s (%s) is queried from port %d, want %d to %d", e.name, e.to, from.Port(), x.low,
							x.high)
					}
				}
			}
		})
	}
}

// testServiceLoop: packets to untranslated addresses of services are not sent back to their source.
func (c *cluster) testServiceLoop(t *testing.T) {
	a, n2 := c.Pods["a"], c.N2
	const port = 7711
	serveTCP(t, c.ToR1.Namespace, port)
	services := []netip.Addr{netip.MustParseAddr("10.96.0.9"), netip.MustParseAddr("fd96::9")}
	for i, s := range services {
		world.IP(t, n2, fmt.Sprintf("-n %s addr add %s/%d dev lo", c.ToR1.Namespace, s, s.BitLen()))
		world.IP(t, n2, fmt.Sprintf("-n %s route add %s via %s", n2.Namespace, s,
			both(c.ToR1.Address(n2), c.ToR1.Address6(n2))[i]))
	}
	announced := "apiVersion: projectcalico.org/v3\nkind: BGPConfiguration\nmetadata: {name: default}\n" +
		"spec: {serviceClusterIPs: [{cidr: 10.96.0.0/16}], serviceExternalIPs: [{cidr: \"fd96::/64\"}]}\n---\n"
	for _, x := range []struct{ name, objects, want string }{
		{"not announced by this cluster", "", answered},
		{"nothing else is said", announced, lost},
		{"refused", announced + felix("default", "serviceLoopPrevention: Reject"), refused},
		{"let through", announced + felix("default", "serviceLoopPrevention: Disabled"), answered},
		{"dropped on this node", announced + felix("default", "serviceLoopPrevention: Disabled") +
			felix("node.n2", "defaultEndpointToHostAction: Return, serviceLoopPrevention: Drop"), lost},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.objects != "" {
				c.temporary(t, documents(t, x.objects)...)
			}
			var list []attempt
			for _, s := range services {
				list = append(list, attempt{"a service", a.Namespace, "tcp", at(s, port), x.want})
				if x.want != answered { // no host can reply
					list = append(list, attempt{"a service", a.Namespace, "udp", at(s, port), x.want})
				}
			}
			tryAll(t, list)
		})
	}
}
