package policy

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// echo answers datagrams at ports of a namespace, from the address that they were sent to.
func echo(t *testing.T, ns string, ports ...int) {
	t.Helper()
	for _, port := range ports {
		for _, network := range []string{"udp4", "udp6"} {
			var conn *net.UDPConn
			var err error
			must(t, namespace.Inside(ns, func() { conn, err = net.ListenUDP(network, &net.UDPAddr{Port: port}) }))
			must(t, err)
			t.Cleanup(func() { conn.Close() })
			go func() {
				for buf := make([]byte, 64); ; {
					n, from, err := conn.ReadFromUDPAddrPort(buf)
					if err != nil {
						return
					}
					_, _ = conn.WriteToUDPAddrPort([]byte(fmt.Sprint(string(buf[:n]), " from ", from)), from)
				}
			}()
		}
	}
}

// requestEcho sends a few datagrams of one new connection and returns the first answer: the client's address as the
// other end sees it.
func requestEcho(ns string, to netip.AddrPort, patience time.Duration) (reply string, err error) {
	var conn net.Conn
	inside := namespace.Inside(ns, func() { conn, err = net.DialUDP("udp", freshPort(), net.UDPAddrFromAddrPort(to)) })
	if inside != nil || err != nil {
		return "", fmt.Errorf("%v %w", inside, err)
	}
	defer conn.Close()
	buf := make([]byte, 128)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if _, err = conn.Write([]byte("hello")); err != nil {
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		var n int
		if n, err = conn.Read(buf); err == nil {
			return string(buf[:n]), nil
		}
	}
	return "", err
}

// probe reports whether one end reaches the other.
type probe struct {
	name string
	ns   string
	to   netip.AddrPort
	pass bool
}

// checkProbes checks probes: those that should pass first, since they may need a moment, then that the others do not.
func checkProbes(t *testing.T, list []probe) {
	t.Helper()
	for _, p := range list {
		if p.pass {
			if _, err := requestEcho(p.ns, p.to, 5*time.Second); err != nil {
				t.Errorf("%s (%s): no answer: %v", p.name, p.to, err)
			}
		}
	}
	for _, p := range list {
		if !p.pass {
			if reply, err := requestEcho(p.ns, p.to, 120*time.Millisecond); err == nil {
				t.Errorf("%s (%s): answered, but policy denies it: %s", p.name, p.to, reply)
			}
		}
	}
}

// TestHostEndpoints drives each kind of host endpoint and of policy for them, in the kernel.
func TestHostEndpoints(t *testing.T) {
	c := newPolicyLab(t, "h", map[string]string{"a": "n2", "b": "n1"})
	n1, n2, a, b := c.N1, c.N2, c.Pods["a"], c.Pods["b"]
	for _, ns := range []string{n1.Namespace, n2.Namespace, a.Namespace, b.Namespace} {
		echo(t, ns, 53, 68, 7001, 7002)
	}
	host := func(name, spec, labels string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: HostEndpoint\n"+
			"metadata: {name: %s, labels: {%s}}\nspec: {node: n2, %s}\n---\n", name, labels, spec)
	}
	policy := func(name, spec string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: %s}\n"+
			"spec: {selector: host == 'n2', %s}\n---\n", name, spec)
	}
	felix := func(spec string) string {
		return fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\n"+
			"metadata: {name: node.n2}\nspec: {%s}\n---\n", spec)
	}
	// A new node's FelixConfiguration has Return, which lets pods reach any port that no other rule of the host
	// forbids.
	usual := documents(t, felix("defaultEndpointToHostAction: Drop"))
	c.enforced(t, c.change(t, usual...))
	// Where the probes go. TCP of BGP and of the datastore is failsafe, or the cluster would fall apart.
	probes := func(in, out, failsafe, through, toHost bool) []probe {
		var list []probe
		for _, six := range []bool{false, true} {
			host1, host2, pod, far := n1.IP4, n2.IP4, a.IP4(), b.IP4()
			if six {
				host1, host2, pod, far = n1.IP6, n2.IP6, a.IP6(), b.IP6()
			}
			list = append(list,
				probe{"to the host", n1.Namespace, at(host2, 7001), in},
				probe{"from the host", n2.Namespace, at(host1, 7001), out},
				probe{"to a failsafe port of the host", n1.Namespace, at(host2, 68), failsafe},
				probe{"from the host to a failsafe port", n2.Namespace, at(host1, 53), failsafe},
				probe{"through the host to a pod", n1.Namespace, at(pod, 7001), through},
				probe{"a pod to a pod of another host", a.Namespace, at(far, 7001), through},
				probe{"the host to its own pod", n2.Namespace, at(pod, 7001), true},
				probe{"a pod to its host", a.Namespace, at(host2, 7001), toHost})
		}
		return list
	}
	only := func(list []probe, name string, pass bool) []probe {
		for i := range list {
			if strings.HasPrefix(list[i].name, name) {
				list[i].pass = pass
			}
		}
		return list
	}
	for _, x := range []struct {
		name   string
		yaml   string
		probes []probe
	}{
		{"none", "", probes(true, true, true, true, false)},
		{"a named one denies all but failsafe ports, and leaves alone what is forwarded",
			host("x", "interfaceName: eth0", ""), probes(false, false, true, true, false)},
		{"one that is found by its addresses", host("x", fmt.Sprintf("expectedIPs: [%s]", n2.IP4), ""),
			probes(false, false, true, true, false)},
		{"the wildcard", host("x", `interfaceName: "*"`, ""), probes(false, false, true, true, false)},
		{"of another interface", host("x", "interfaceName: eth7", ""), probes(true, true, true, true, false)},
		{"with the profile that allows all", host("x", `interfaceName: "*", profiles: [projectcalico-default-allow]`,
			""), probes(true, true, true, true, false)},
		{"a policy opens a port", host("x", "interfaceName: eth0", "host: n2") +
			policy("open", "ingress: [{action: Allow, protocol: UDP, destination: {ports: [7001]}}]"),
			probes(true, false, true, true, false)},
		{"a policy for what is forwarded", host("x", `interfaceName: "*", profiles: [projectcalico-default-allow]`,
			"host: n2") +
			policy("forward", "applyOnForward: true, types: [Ingress, Egress], ingress: [{action: Deny, protocol: "+
				"UDP, destination: {ports: [7001]}}, {action: Allow}], egress: [{action: Allow}]"),
			probes(false, true, true, false, false)}, // the wildcard stands for the interfaces of pods, too
		{"a policy for what is forwarded through one interface",
			host("x", `interfaceName: eth0, profiles: [projectcalico-default-allow]`, "host: n2") +
				policy("forward", "applyOnForward: true, types: [Ingress, Egress], ingress: [{action: Deny, protocol: "+
					"UDP, destination: {ports: [7001]}}, {action: Allow}], egress: [{action: Allow}]"),
			only(probes(false, true, true, false, false), "a pod to a pod", true)},
		{"a policy before translation", host("x", `interfaceName: eth0, profiles: [projectcalico-default-allow]`,
			"host: n2") +
			policy("early", "applyOnForward: true, preDNAT: true, types: [Ingress], ingress: [{action: Deny, "+
				"protocol: UDP, destination: {ports: [7001]}}]"),
			only(probes(false, true, true, false, false), "a pod to a pod", true)},
		{"a policy before connections are tracked",
			host("x", `interfaceName: eth0, profiles: [projectcalico-default-allow]`, "host: n2") +
				policy("untracked", "applyOnForward: true, doNotTrack: true, types: [Ingress], ingress: "+
					"[{action: Deny, "+
					"protocol: UDP, destination: {ports: [7001]}}]"),
			only(probes(false, true, true, false, false), "a pod to a pod", true)},
		{"no failsafe ports but those that the cluster needs", host("x", "interfaceName: eth0", "") +
			felix("defaultEndpointToHostAction: Drop, failsafeInboundHostPorts: [{protocol: TCP, port: 179}, "+
				"{protocol: TCP, port: 2379}], failsafeOutboundHostPorts: [{protocol: TCP, port: 179}, {protocol: "+
				"TCP, port: 2379}]"),
			probes(false, false, false, true, false)},
		{"pods may reach their host", felix("defaultEndpointToHostAction: Accept"),
			probes(true, true, true, true, true)},
		{"pods may reach their host, which has an endpoint", felix("defaultEndpointToHostAction: Accept") +
			host("x", `interfaceName: "*"`, ""), probes(false, false, true, true, true)},
	} {
		t.Run(x.name, func(t *testing.T) {
			start := time.Now()
			if x.yaml != "" {
				list := documents(t, x.yaml)
				c.enforced(t, c.change(t, list...), n2)
				defer func() { c.enforced(t, c.change(t, append(deletions(list, usual), usual...)...), n2) }()
			}
			for _, n := range []*lab.Node{n1, n2} { // they have to find each other again, whatever the policy
				if out, err := n.Run("ip", "neigh", "flush", "dev", "eth0"); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			checkProbes(t, x.probes)
			if t.Failed() {
				t.Log(table(t, n2))
			}
			t.Logf("took %.1f s", time.Since(start).Seconds())
		})
	}
}
