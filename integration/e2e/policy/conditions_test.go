package policy

import (
	"cmp"
	"fmt"
	"io"
	"testing"

	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// testConditions compares rules for protocols, ports and ICMP with packets of every kind.
func (c *cluster) testConditions(t *testing.T) {
	b, far := c.Pods["b"], c.Pods["far"]
	for _, a := range b.IPs {
		var server io.Closer
		var err error
		must(t, namespace.Inside(b.Namespace, func() {
			server, err = lab.ServeSCTP(a, map[uint16]bool{7001: true, 7002: true, 7003: true})
		}))
		must(t, err)
		t.Cleanup(func() { server.Close() })
	}
	// The probes: "tcp1" is TCP to port 7001, "ping4" an echo request of IPv4, and so on.
	kinds := []string{"tcp1", "tcp2", "tcp3", "udp1", "udp2", "udp3", "sctp1", "sctp2", "sctp3", "ping4", "ping6"}
	for _, x := range []struct {
		rules string
		pass  []string
	}{
		{"", nil},
		{"{action: Allow, protocol: TCP}", []string{"tcp1", "tcp2", "tcp3"}},
		{"{action: Allow, protocol: 17}", []string{"udp1", "udp2", "udp3"}},
		{"{action: Allow, protocol: SCTP, destination: {ports: [7001]}}", []string{"sctp1"}},
		{"{action: Allow, notProtocol: SCTP}", []string{"tcp1", "tcp2", "tcp3", "udp1", "udp2", "udp3", "ping4",
			"ping6"}},
		{"{action: Allow, notProtocol: UDP}", []string{"tcp1", "tcp2", "tcp3", "sctp1", "sctp2", "sctp3", "ping4",
			"ping6"}},
		{`{action: Allow, protocol: TCP, destination: {ports: ["7002:7003"]}}`, []string{"tcp2", "tcp3"}},
		{`{action: Allow, protocol: UDP, destination: {ports: [7001, "7003:7010"]}}`, []string{"udp1", "udp3"}},
		{"{action: Allow, protocol: TCP, destination: {notPorts: [7002]}}", []string{"tcp1", "tcp3"}},
		{`{action: Allow, protocol: SCTP, destination: {notPorts: [7001, "7003:7003"]}}`, []string{"sctp2"}},
		{`{action: Allow, protocol: UDP, destination: {ports: ["7001:7003"], notPorts: [7002]}}`,
			[]string{"udp1", "udp3"}},
		{
			`{action: Deny, protocol: TCP, source: {notPorts: ["1:65535"]}}, {action: Allow, protocol: TCP, source: {ports: ["1:65535"]}, destination: {ports: [7001]}}`, []string{"tcp1"}},
		{"{action: Allow, protocol: ICMP}", []string{"ping4"}},
		{"{action: Allow, protocol: ICMPv6}", []string{"ping6"}},
		{"{action: Allow, protocol: ICMP, icmp: {type: 8}}, {action: Allow, protocol: ICMPv6, icmp: {type: " +
			"128, code: 0}}", []string{"ping4", "ping6"}},
		{"{action: Allow, protocol: ICMP, icmp: {type: 8, code: 1}}, {action: Allow, protocol: ICMPv6, icmp: " +
			"{type: 129}}", nil},
		{"{action: Allow, protocol: ICMP, notICMP: {type: 8}}, {action: Allow, protocol: ICMPv6, notICMP: {type: " +
			"128, code: 1}}", []string{"ping6"}},
		{"{action: Allow, protocol: ICMP, notICMP: {type: 8, code: 3}}, {action: Allow, protocol: ICMPv6, notICMP: " +
			"{type: 128, code: 0}}", []string{"ping4"}},
		{"{action: Log}, {action: Allow, protocol: TCP}, {action: Log, protocol: UDP}, {action: Deny, protocol: " +
			"UDP}, {action: Allow}",
			[]string{"tcp1", "tcp2", "tcp3", "sctp1", "sctp2", "sctp3", "ping4", "ping6"}},
		{"{action: Allow, ipVersion: 6}", []string{"tcp1-6", "tcp2-6", "tcp3-6", "udp1-6", "udp2-6", "udp3-6",
			"sctp1-6", "sctp2-6", "sctp3-6", "ping6"}},
	} {
		t.Run(cmp.Or(x.rules, "none"), func(t *testing.T) {
			policy := documents(t, world.GlobalPolicy("conditions",
				"selector: role == 'b', types: [Ingress], ingress: ["+x.rules+
					"]"))
			c.enforced(t, c.change(t, policy...))
			defer func() { c.enforced(t, c.change(t, asDeleted(policy)...)) }()
			pass := map[string]bool{}
			for _, p := range x.pass {
				pass[p] = true
			}
			var list []attempt
			for i, to := range both(b.IP4(), b.IP6()) {
				family := [...]string{"4", "6"}[i]
				for _, kind := range kinds {
					if kind == "ping"+[...]string{"6", "4"}[i] {
						continue
					}
					want := lost
					if pass[kind] || pass[kind+"-"+family] {
						want = answered
					}
					network, port := kind[:len(kind)-1], uint16(7000+int(kind[len(kind)-1]-'0'))
					list = append(list, attempt{kind + " by IPv" + family, far.Namespace, network, at(to, port), want})
				}
			}
			tryAll(t, list)
		})
	}
}

// named gives a pod a named port.
func named(o map[string]any, name, protocol string, port int) {
	o["spec"].(map[string]any)["ports"] = []map[string]any{
		{"name": name, "protocol": protocol, "port": port, "hostPort": 0, "hostIP": ""}}
}

// testNamedPorts uses a name for another number in each pod, and for another protocol, in both directions and negated.
func (c *cluster) testNamedPorts(t *testing.T) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	web := func(pod, protocol string, port int) entry {
		return c.endpoint(t, pod, func(o map[string]any) { named(o, "web", protocol, port) })
	}
	const either = "selector: \"role in {'a', 'b'}\", types: [Ingress], ingress: "
	type passes struct{ a1, a2, b1, b2, b3 bool } // UDP from far to that pod and port
	check := func(t *testing.T, want passes) {
		t.Helper()
		var list []attempt
		for i := range a.IPs {
			for _, x := range []struct {
				pod  *lab.Pod
				port uint16
				pass bool
			}{{a, 7001, want.a1}, {a, 7002, want.a2}, {b, 7001, want.b1}, {b, 7002, want.b2}, {b, 7003, want.b3}} {
				result := lost
				if x.pass {
					result = answered
				}
				list = append(list, attempt{fmt.Sprintf("to %s", x.pod.Name), far.Namespace, "udp",
					at(x.pod.IPs[i], x.port), result})
			}
		}
		tryAll(t, list)
	}
	c.temporary(t, web("a", "UDP", 7001), web("b", "UDP", 7002))
	for _, x := range []struct {
		name, policy string
		want         passes
	}{
		{"of the receiver", either + "[{action: Allow, protocol: UDP, destination: {ports: [web]}}]",
			passes{a1: true, b2: true}},
		{"or a number", either + "[{action: Allow, protocol: UDP, destination: {ports: [web, 7003]}}]",
			passes{a1: true, b2: true, b3: true}},
		{"of one of them", either + "[{action: Allow, protocol: UDP, destination: {selector: role == 'b', " +
			"ports: [web]}}]", passes{b2: true}},
		{"all but these", either + "[{action: Allow, protocol: UDP, destination: {notPorts: [web]}}]",
			passes{a2: true, b1: true, b3: true}},
		{"of another protocol", either + "[{action: Allow, protocol: TCP, destination: {ports: [web]}}]", passes{}},
		{"that nobody has", either + "[{action: Allow, protocol: UDP, destination: {ports: [web-too]}}]", passes{}},
		{"seen from the sender", "selector: role == 'far', types: [Egress], egress: [{action: Allow, protocol: UDP, " +
			"destination: {ports: [web]}}]", passes{a1: true, b2: true}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c.temporary(t, documents(t, world.GlobalPolicy("named", x.policy))...)
			check(t, x.want)
		})
	}
	t.Run("the number and the protocol change", func(t *testing.T) {
		c.temporary(t, documents(t, world.GlobalPolicy("named", either+"[{action: Allow, protocol: UDP, destination: "+
			"{ports: [web]}}]"))...)
		c.temporary(t, web("b", "UDP", 7003))
		check(t, passes{a1: true, b3: true})
		c.enforced(t, c.change(t, web("a", "TCP", 7001)))
		check(t, passes{b3: true})
		c.enforced(t, c.change(t, web("a", "UDP", 7002),
			c.endpoint(t, "b", func(o map[string]any) { delete(o["spec"].(map[string]any), "ports") })))
		check(t, passes{a2: true})
	})
}

// testProfiles changes the rules of profiles, their endpoints, and the labels that endpoints inherit.
func (c *cluster) testProfiles(t *testing.T) {
	a, b, far := c.Pods["a"], c.Pods["b"], c.Pods["far"]
	profile := func(name, spec string) []entry {
		return documents(t, fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Profile\n"+
			"metadata: {name: %s}\nspec: {%s}\n", name, spec))
	}
	assignProfiles := func(pod string, profiles ...string) entry {
		return c.endpoint(t, pod, func(o map[string]any) { o["spec"].(map[string]any)["profiles"] = profiles })
	}
	check := func(t *testing.T, from *lab.Pod, one, two string) {
		t.Helper()
		var list []attempt
		for _, to := range b.IPs {
			list = append(list, attempt{from.Name + " to b", from.Namespace, "udp", at(to, 7001), one},
				attempt{from.Name + " to b", from.Namespace, "tcp", at(to, 7002), two})
		}
		tryAll(t, list)
	}
	udp := "ingress: [" + rule("Allow", 7001) + "]"
	t.Run("rules", func(t *testing.T) {
		c.temporary(t, append(profile("team", udp), assignProfiles("b", "team"))...)
		check(t, far, answered, lost)
		c.enforced(t, c.change(t, profile("team", "ingress: [{action: Allow, protocol: TCP}]")...))
		check(t, far, lost, answered)
		c.enforced(t, c.change(t, profile("team", "ingress: [{action: Deny, protocol: TCP}, {action: Allow}]")...))
		check(t, far, answered, lost)
		c.enforced(t, c.change(t, asDeleted(profile("team", ""))...)) // an unknown profile lets nothing in
		check(t, far, lost, lost)
		c.enforced(t, c.change(t, profile("team", udp)...))
		check(t, far, answered, lost)
	})
	t.Run("the first that decides counts", func(t *testing.T) {
		c.temporary(t, append(append(profile("team", udp),
			profile("closed", "ingress: [{action: Deny, protocol: UDP}]")...),
			assignProfiles("b", "team", "closed", "k8s-pod-network"))...)
		check(t, far, answered, answered)
		c.enforced(t, c.change(t, assignProfiles("b", "closed", "team", "k8s-pod-network")))
		check(t, far, lost, answered)
		c.enforced(t, c.change(t, assignProfiles("b")))
		check(t, far, lost, lost)
	})
	t.Run("labels", func(t *testing.T) {
		c.temporary(t,
			append(append(profile("team", "labelsToApply: {team: red}, ingress: [{action: Allow}], egress: "+
				"[{action: Allow}]"), assignProfiles("a", "team")),
				documents(t, world.GlobalPolicy("red",
					"selector: role == 'b', ingress: [{action: Allow, protocol: UDP, source: "+
						"{selector: team == 'red'}}, {action: Allow, protocol: TCP, "+
						"source: {selector: team == 'blue'}}]"))...)...)
		check(t, a, answered, lost)
		check(t, far, lost, lost)
		c.enforced(t, c.change(t, profile("team", "labelsToApply: {team: blue}, ingress: [{action: Allow}], egress: "+
			"[{action: Allow}]")...))
		check(t, a, lost, answered)
		c.enforced(t, c.change(t, assignProfiles("far", "team"))) // of another host
		check(t, far, lost, answered)
		c.enforced(t, c.change(t, c.labelled(t, "far", map[string]string{"team": "red"}))) // its own labels come first
		check(t, far, answered, lost)
		c.enforced(t, c.change(t, c.endpoint(t, "far", func(o map[string]any) {
			o["spec"].(map[string]any)["profiles"] = []string{"k8s-pod-network"}
			delete(o["metadata"].(map[string]any)["labels"].(map[string]any), "team")
		})))
		check(t, far, lost, lost)
	})
	t.Run("a policy selects by a profile's label", func(t *testing.T) {
		c.temporary(t,
			append(append(profile("team", "labelsToApply: {guarded: yes-please}, ingress: [{action: Allow}], egress: "+
				"[{action: Allow}]"), assignProfiles("b", "team")),
				documents(t, world.GlobalPolicy("guard", "selector: guarded == 'yes-please', "+udp))...)...)
		check(t, far, answered, lost)
		c.enforced(t, c.change(t, profile("team", "ingress: [{action: Allow}], egress: [{action: Allow}]")...))
		check(t, far, answered, answered)
	})
}
