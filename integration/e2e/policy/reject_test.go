package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
)

// testReject: nftablesFilterDenyAction decides whether clients get a refusal. With Drop, the default, they get none.
func (c *cluster) testReject(t *testing.T) {
	a, b, far, n2 := c.Pods["a"], c.Pods["b"], c.Pods["far"], c.N2
	c.temporary(t, documents(t, world.GlobalPolicy("reject-in", "selector: role == 'b', types: [Ingress], ingress: ["+
		"{action: Deny, protocol: TCP, destination: {ports: [7001]}}, {action: Deny, protocol: UDP, destination: "+
		"{ports: [7001]}}, "+
		"{action: Allow, protocol: TCP, destination: {ports: [7002]}}, {action: Allow, protocol: UDP, destination: "+
		"{ports: [7002]}}]")+
		world.GlobalPolicy("reject-out", "selector: role == 'a', types: [Egress], egress: ["+
			"{action: Deny, protocol: TCP, destination: {ports: [7003]}}, {action: Deny, protocol: UDP, destination: "+
			"{ports: [7003]}}, {action: Allow}]"))...)
	// The settings of the node's administrator come first. Policy does not decide here about packets from pods to their
	// host.
	c.temporary(t, documents(t, felix("default", "")+felix("node.n2", "defaultEndpointToHostAction: Drop"))...)

	attempts := func(denied string) (list []attempt) {
		for i, to := range both(b.IP4(), b.IP6()) {
			host, elsewhere := both(n2.IP4, n2.IP6)[i], both(far.IP4(), far.IP6())[i]
			for _, network := range []string{"tcp", "udp"} {
				list = append(list,
					attempt{"a rule of the server's policy, same host", a.Namespace, network, at(to, 7001), denied},
					attempt{"a rule of the server's policy, other host", far.Namespace, network, at(to, 7001), denied},
					attempt{"a rule of the server's policy, asked by another host itself", c.N1.Namespace, network,
						at(to, 7001), denied},
					attempt{"the end of the server's tier", far.Namespace, network, at(to, 7004), denied},
					attempt{"a rule of the client's policy", a.Namespace, network, at(elsewhere, 7003), denied},
					attempt{"the own host", a.Namespace, network, at(host, 7001), denied},
					attempt{"what is allowed, same host", a.Namespace, network, at(to, 7002), answered},
					attempt{"what is allowed, other host", far.Namespace, network, at(to, 7002), answered})
			}
		}
		return list
	}
	for _, x := range []struct{ name, yaml, denied string }{
		{"nothing is said", "", lost},
		{"of the cluster", felix("default", "nftablesFilterDenyAction: Reject"), refused},
		{"of the cluster, but not of this node", felix("default", "nftablesFilterDenyAction: Reject") +
			felix("node.n2", "defaultEndpointToHostAction: Drop, nftablesFilterDenyAction: Drop"), lost},
		{"of this node", felix("default", "nftablesFilterDenyAction: Drop") +
			felix("node.n2", "defaultEndpointToHostAction: Drop, nftablesFilterDenyAction: REJECT"), refused},
		{"by the name that it has for iptables", felix("default", "iptablesFilterDenyAction: Reject") +
			felix("node.n2", "defaultEndpointToHostAction: Drop"), refused},
		{"no longer", felix("default", "nftablesFilterDenyAction: Drop") +
			felix("node.n2", "defaultEndpointToHostAction: Drop"), lost},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.yaml != "" {
				c.apply(t, x.yaml)
			}
			tryAll(t, attempts(x.denied))
		})
	}
	t.Run("by host endpoints", c.testRejectByHosts)
	t.Run("behind a service", c.testRejectBehindService)
}

// testRejectBehindService: the refusal comes from the address of the client's request, despite another program's
// translation.
func (c *cluster) testRejectBehindService(t *testing.T) {
	a, b, far, n2 := c.Pods["a"], c.Pods["b"], c.Pods["far"], c.N2
	table := "table inet service {\n\tchain translated {\n\t\ttype nat hook prerouting priority dstnat;\n"
	near, remote := both(netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::10")),
		both(netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("fd96::11"))
	for i, family := range []string{"ip", "ip6"} {
		for service, pod := range map[netip.Addr]netip.Addr{near[i]: both(b.IP4(), b.IP6())[i],
			remote[i]: both(far.IP4(), far.IP6())[i]} {
			table += fmt.Sprintf("\t\t%s daddr %s dnat %s to %s\n", family, service, family, pod)
			world.IP(t, n2, fmt.Sprintf("-n %s route replace %s via %s", n2.Namespace, service,
				both(c.ToR1.Address(n2), c.ToR1.Address6(n2))[i]))
		}
	}
	_, err := n2.Run("nft", table+"\t}\n}")
	must(t, err)
	defer n2.Run("nft", "delete", "table", "inet", "service") //nolint:errcheck // it goes with the lab
	c.temporary(t, documents(t, felix("default", "nftablesFilterDenyAction: Reject")+
		world.GlobalPolicy("far-too", "selector: role == 'far', types: [Ingress], ingress: ["+rule("Allow", 7002)+
			", {action: Allow, protocol: TCP, destination: {ports: [7002]}}]"))...)
	var list []attempt
	for i := range near {
		for _, network := range []string{"tcp", "udp"} {
			for _, service := range []netip.Addr{near[i], remote[i]} {
				list = append(list, attempt{"a port that is denied", a.Namespace, network, at(service, 7001), refused},
					attempt{"a port that is allowed", a.Namespace, network, at(service, 7002), answered})
			}
		}
	}
	tryAll(t, list)
}

// testRejectByHosts: packets that host endpoints deny are refused, except where the kernel cannot answer: on the way
// out, and before connections are tracked or translated.
func (c *cluster) testRejectByHosts(t *testing.T) {
	n1, n2, a := c.N1, c.N2, c.Pods["a"]
	c.temporary(t, documents(t, felix("node.n2", "defaultEndpointToHostAction: Drop, nftablesFilterDenyAction: Reject")+
		"apiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: n2-eth0, labels: {host: n2}}\n"+
		"spec: {node: n2, interfaceName: eth0}\n---\n")...)
	all := func(name, spec string) string { return world.GlobalPolicy(name, "selector: host == 'n2', "+spec) }
	for _, x := range []struct {
		name, policy     string
		in, through, out string
	}{
		{"nothing allows it", "", refused, answered, lost},
		{"what is forwarded is denied", all("forward", "applyOnForward: true, types: [Ingress], ingress: "+
			"[{action: Deny}]"), refused, refused, lost},
		{"before connections are tracked",
			all("early", "applyOnForward: true, doNotTrack: true, types: [Ingress], ingress: [{action: Deny}]"), lost,
			lost, lost},
		{"before addresses are translated",
			all("early", "applyOnForward: true, preDNAT: true, types: [Ingress], ingress: [{action: Deny}]"), lost,
			lost, lost},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.policy != "" {
				c.temporary(t, documents(t, x.policy)...)
			}
			var list []attempt
			for i, host := range both(n2.IP4, n2.IP6) {
				for _, network := range []string{"tcp", "udp"} {
					list = append(list,
						attempt{"to the host", n1.Namespace, network, at(host, 7001), x.in},
						attempt{"to a pod of the host", n1.Namespace, network, at(both(a.IP4(), a.IP6())[i], 7001),
							x.through},
						attempt{"from the host", n2.Namespace, network, at(both(n1.IP4, n1.IP6)[i], 7001), x.out})
				}
			}
			tryAll(t, list)
		})
	}
}
