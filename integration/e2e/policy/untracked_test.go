package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
)

// tracked reports whether a node's kernel has a connection from an address to a port; skipped where it does not show
// them.
func tracked(t *testing.T, n *lab.Node, from netip.Addr, port uint16) bool {
	t.Helper()
	out, err := n.Run("cat", "/proc/net/nf_conntrack")
	if err != nil {
		t.Skipf("the kernel does not show its connections: %v", err)
	}
	for line := range strings.Lines(out) {
		// The first of each are those before translation, of the first packet.
		fields := strings.Fields(line)
		is := func(prefix, value string) bool {
			i := slices.IndexFunc(fields, func(f string) bool { return strings.HasPrefix(f, prefix) })
			return i >= 0 && fields[i] == prefix+value
		}
		if is("src=", from.StringExpanded()) && is("dport=", fmt.Sprint(port)) {
			return true
		}
	}
	return false
}

// testUntracked tests the decisions of host endpoints' policies before connections are tracked, with another host at
// the other end.
func (c *cluster) testUntracked(t *testing.T) {
	n1, n2 := c.N1, c.N2
	const first = 7301 // each case has its own port: connections persist
	early := func(name, spec string) string {
		return world.GlobalPolicy(name, "selector: host == 'n2', applyOnForward: true, doNotTrack: true, "+spec)
	}
	ports := func(action, end string, port int) string {
		return fmt.Sprintf("{action: %s, protocol: UDP, %s: {ports: [%d]}}, {action: %s, protocol: TCP, %s: "+
			"{ports: [%d]}}", action, end, port, action, end, port)
	}
	ends := map[bool]struct {
		name     string
		from, to *lab.Node
	}{true: {"to the host", n1, n2}, false: {"from the host", n2, n1}}
	for i, x := range []struct {
		name    string
		profile bool // that allows all packets without a policy's decision
		in      bool // the client is outside
		policy  func(port int) string
		want    string
		tracked bool
	}{
		{"nothing allows what comes in", false, true, func(int) string { return "" }, lost, false},
		{"what comes in and its replies are allowed", false, true, func(port int) string {
			return early("untracked", "types: [Ingress, Egress], ingress: ["+ports("Allow", "destination", port)+
				"], egress: ["+ports("Allow", "source", port)+"]")
		}, answered, false},
		{"what comes in is allowed, its replies are not", false, true, func(port int) string {
			return early("untracked", "types: [Ingress], ingress: ["+ports("Allow", "destination", port)+"]")
		}, lost, false},
		{"what comes in is denied", true, true, func(port int) string {
			return early("untracked", "types: [Ingress], ingress: ["+ports("Deny", "destination", port)+"]")
		}, lost, false},
		{"replies to what comes in are denied", true, true, func(port int) string {
			return early("untracked", "types: [Egress], egress: ["+ports("Deny", "source", port)+"]")
		}, lost, true},
		{"another policy decides", true, true, func(port int) string {
			return early("untracked", "types: [Ingress, Egress], ingress: ["+ports("Deny", "destination", port+100)+
				"], egress: ["+ports("Deny", "source", port+100)+"]")
		}, answered, true},
		{"what goes out and its replies are allowed", false, false, func(port int) string {
			return early("untracked", "types: [Ingress, Egress], ingress: ["+ports("Allow", "source", port)+
				"], egress: ["+ports("Allow", "destination", port)+"]")
		}, answered, false},
		{"what goes out is denied", true, false, func(port int) string {
			return early("untracked", "types: [Egress], egress: ["+ports("Deny", "destination", port)+"]")
		}, lost, false},
		{"replies to what goes out are denied", true, false, func(port int) string {
			return early("untracked", "types: [Ingress], ingress: ["+ports("Deny", "source", port)+"]")
		}, lost, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			port := first + i
			for _, n := range c.Nodes {
				echo(t, n.Namespace, port)
				serveTCP(t, n.Namespace, port)
			}
			profile := ""
			if x.profile {
				profile = ", profiles: [projectcalico-default-allow]"
			}
			host := "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\n" +
				"metadata: {name: n2-eth0, labels: {host: n2}}\nspec: {node: n2, interfaceName: eth0" + profile +
				"}\n---\n"
			c.temporary(t, documents(t, host+x.policy(port))...)
			var list []attempt
			e := ends[x.in]
			for _, network := range []string{"udp", "tcp"} {
				for _, to := range both(e.to.IP4, e.to.IP6) {
					list = append(list, attempt{e.name, e.from.Namespace, network, at(to, uint16(port)), x.want})
				}
			}
			tryAll(t, list)
			for _, from := range both(e.from.IP4, e.from.IP6) {
				if got := tracked(t, n2, from, uint16(port)); got != x.tracked {
					t.Errorf("the connection from %s is tracked: %v, want %v", from, got, x.tracked)
				}
			}
		})
	}
}

// testPreDNAT tests the decisions of host endpoints' policies before addresses are translated, with another program's
// translation of a port of the host to a pod.
func (c *cluster) testPreDNAT(t *testing.T) {
	n1, n2, a := c.N1, c.N2, c.Pods["a"]
	const outer, inner, own = 7401, 7001, 7002
	_, err := n2.Run("nft", fmt.Sprintf(`table inet service {
	chain translated {
		type nat hook prerouting priority dstnat;
		ip daddr %s meta l4proto { tcp, udp } th dport %d dnat ip to %s:%d
		ip6 daddr %s meta l4proto { tcp, udp } th dport %d dnat ip6 to [%s]:%d
	}
}`, n2.IP4, outer, a.IP4(), inner, n2.IP6, outer, a.IP6(), inner))
	must(t, err)
	defer n2.Run("nft", "delete", "table", "inet", "service") //nolint:errcheck // it goes with the lab
	serveTCP(t, n2.Namespace, own)
	early := func(rules string) string {
		return world.GlobalPolicy("pre-dnat", "selector: host == 'n2', applyOnForward: true, preDNAT: true, types: "+
			"[Ingress], ingress: ["+rules+"]")
	}
	ports := func(action string, port int) string {
		return fmt.Sprintf("{action: %s, protocol: UDP, destination: {ports: [%d]}}, {action: %s, protocol: TCP, "+
			"destination: {ports: [%d]}}", action, port, action, port)
	}
	// Denies packets forwarded to pods.
	const late = "selector: host == 'n2', applyOnForward: true, order: 10, types: [Ingress], ingress: [{action: Deny}]"
	for _, x := range []struct {
		name                    string
		profile                 bool
		policy                  string
		translated, direct, own string // to the pod by the host's port; to the pod itself; to the host
	}{
		{"nothing", true, "", answered, answered, answered},
		{"the port before translation is denied", true, early(ports("Deny", outer)), lost, answered, answered},
		{"the port behind translation is denied", true, early(ports("Deny", inner)), answered, lost, answered},
		{"all is denied", true, early("{action: Deny}"), lost, lost, lost},
		{"the host's port is allowed, nothing else allows it", false, early(ports("Allow", own)), answered, answered,
			answered},
		{"nothing allows the host's port", false, "", answered, answered, lost},
		{"the port before translation is allowed, what is forwarded is denied", true, early(ports("Allow", outer)) +
			world.GlobalPolicy("late", late), answered, lost, lost},
		{"what is forwarded is denied", true, world.GlobalPolicy("late", late), lost, lost, lost},
	} {
		t.Run(x.name, func(t *testing.T) {
			profile := ""
			if x.profile {
				profile = ", profiles: [projectcalico-default-allow]"
			}
			host := "apiVersion: projectcalico.org/v3\nkind: HostEndpoint\n" +
				"metadata: {name: n2-eth0, labels: {host: n2}}\nspec: {node: n2, interfaceName: eth0" + profile +
				"}\n---\n"
			c.temporary(t, documents(t, host+x.policy)...)
			var list []attempt
			for i, to := range both(n2.IP4, n2.IP6) {
				for _, network := range []string{"udp", "tcp"} {
					list = append(list,
						attempt{"to the pod by the host's port", n1.Namespace, network, at(to, outer), x.translated},
						attempt{"to the pod itself", n1.Namespace, network, at(both(a.IP4(), a.IP6())[i], inner),
							x.direct},
						attempt{"to the host", n1.Namespace, network, at(to, own), x.own})
				}
			}
			tryAll(t, list)
		})
	}
}
