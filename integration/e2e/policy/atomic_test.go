package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
)

// Ports of the floods.
const (
	oldPort, newPort = 7001, 7002 // allowed in one state each
	freePort         = 7003       // always
	deniedPort       = 7004       // never
	handedPort       = 7005       // always, by the rule that allows the old port or by the one that allows the new one
)

// swap is a change of policy and back: in state 0 the old port is allowed, in state 1 the new one.
type swap struct {
	name   string
	states [2][]entry
}

// globalPolicy is a GlobalNetworkPolicy about the server.
func globalPolicy(name, extra string, rules ...string) string {
	return fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: %s}
spec: {selector: "role == 'server'", types: [Ingress], ingress: [%s]%s}
---`, name, strings.Join(rules, ", "), extra)
}

func rule(action string, ports ...int) string {
	return fmt.Sprintf("{action: %s, protocol: UDP, destination: {ports: [%s]}}", action,
		strings.Trim(strings.ReplaceAll(fmt.Sprint(ports), " ", ", "), "[]"))
}

// swaps are changes of every kind that can open one port and close another.
func (c *cluster) swaps(t *testing.T) []swap {
	docs := func(yaml ...string) []entry { return documents(t, strings.Join(yaml, "\n---\n")) }
	old, new := rule("Allow", oldPort, handedPort), rule("Allow", newPort, handedPort)
	notOld, notNew := rule("Deny", oldPort), rule("Deny", newPort)
	a, b := docs(globalPolicy("a", ", order: 20", old)), docs(globalPolicy("b", ", order: 20", new))
	sets := func(a, b string) []entry {
		text := ""
		for name, nets := range map[string]string{"a": a, "b": b} {
			text += fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\n"+
				"metadata: {name: %s, labels: {set: %s}}\nspec: {nets: [%s]}\n---\n", name, name, nets)
		}
		return docs(text)
	}
	both := globalPolicy("sets", ", order: 20",
		"{action: Allow, protocol: UDP, source: {selector: \"set == 'a'\"}, destination: {ports: [7001, 7005]}}",
		"{action: Allow, protocol: UDP, source: {selector: \"set == 'b'\"}, destination: {ports: [7002, 7005]}}")
	client := c.Pods["client"]
	one := fmt.Sprintf(`"%s", "%s"`, client.IP4(), client.IP6())
	many := one + `, "10.244.0.0/16", "10.0.0.0/8", "fd00:244::/64"`
	none := `"198.51.100.0/24"`
	tiers := func(first, second int) []entry {
		text := ""
		for name, order := range map[string]int{"first": first, "second": second} {
			text += fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: %s}\n"+
				"spec: {order: %d, defaultAction: Pass}\n---\n", name, order)
		}
		return docs(text)
	}
	inTiers := docs(globalPolicy("first.x", ", tier: first", old, notNew),
		globalPolicy("second.x", ", tier: second", new, notOld))
	var sixty [2]string
	for i := range 60 {
		for state, r := range []string{old, new} {
			if i != 30 {
				r = rule("Allow", 9000+i)
			}
			sixty[state] += globalPolicy(fmt.Sprintf("many-%d-%d", state, i), fmt.Sprintf(", order: %d", i), r)
		}
	}
	profile := func(r string) []entry {
		return docs(fmt.Sprintf("apiVersion: projectcalico.org/v3\nkind: Profile\n"+
			"metadata: {name: k8s-pod-network}\nspec: {ingress: [%s], egress: [{action: Allow}]}", r))
	}
	coloured := docs(
		strings.Replace(globalPolicy("red", ", order: 20", old), "role == 'server'", "colour == 'red'", 1),
		strings.Replace(globalPolicy("blue", ", order: 20", new), "role == 'server'", "colour == 'blue'", 1))
	colour := func(s string) entry {
		return c.labelled(t, "server", map[string]string{"role": "server", "colour": s})
	}
	join := func(lists ...[]entry) (all []entry) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	return []swap{
		{"the rules of a policy", [2][]entry{docs(globalPolicy("one", "", old)),
			docs(globalPolicy("one", "", new))}},
		{"one policy goes, another comes", [2][]entry{join(a, asDeleted(b)), join(b, asDeleted(a))}},
		{"the order of two policies", [2][]entry{
			docs(globalPolicy("one", ", order: 10", old, notNew), globalPolicy("two", ", order: 20", new, notOld)),
			docs(globalPolicy("one", ", order: 30", old, notNew), globalPolicy("two", ", order: 20", new, notOld))}},
		{"the members of two sets", [2][]entry{join(docs(both), sets(one, none)),
			join(docs(both), sets(none, one))}},
		{"networks that overlap", [2][]entry{join(docs(both), sets(many, none)),
			join(docs(both), sets(none, many))}},
		{"the labels of an endpoint", [2][]entry{join(coloured, []entry{colour("red")}),
			join(coloured, []entry{colour("blue")})}},
		{"the order of two tiers", [2][]entry{join(inTiers, tiers(10, 20)), join(inTiers, tiers(30, 20))}},
		{"sixty policies for sixty others", [2][]entry{join(docs(sixty[0]), asDeleted(docs(sixty[1]))),
			join(docs(sixty[1]), asDeleted(docs(sixty[0])))}},
		{"the rules of a profile", [2][]entry{profile(old), profile(new)}},
	}
}

// early is evaluated before all others: its decision about the third and fourth port holds in every state.
const early = `
apiVersion: projectcalico.org/v3
kind: Tier
metadata: {name: early}
spec: {order: 1, defaultAction: Pass}
---
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata: {name: early.always}
spec:
  tier: early
  selector: role == 'server'
  types: [Ingress]
  ingress:
  - {action: Allow, protocol: UDP, destination: {ports: [7003]}}
  - {action: Deny, protocol: UDP, destination: {ports: [7004]}}
`

// testAtomic changes policy under datagrams of which each state allows one half, and compares the arrivals with it.
func (c *cluster) testAtomic(t *testing.T) {
	const perKind = 24
	server := c.Pods["server"]
	list := c.swaps(t)
	must(t, c.N1.Apply(early))
	defer func() { c.change(t, asDeleted(documents(t, early))...) }()
	c.change(t, c.labelled(t, "server", map[string]string{"role": "server"}))
	first := c.change(t, list[0].states[0]...)
	c.enforced(t, first)

	f := newFlood(time.Millisecond)
	type pair struct{ old, new *stream }
	var pairs []pair
	var free, denied []*stream
	for _, a := range server.IPs {
		add := func(from string, port uint16) *stream {
			return f.add(t, fmt.Sprintf("%s to %s port %d", from, a, port), c.Pods[from].Namespace, at(a, port),
				server.Namespace)
		}
		pairs = append(pairs, pair{add("client", oldPort), add("client", newPort)})
		free = append(free, add("client", freePort), add("remote", freePort), add("client", handedPort))
		denied = append(denied, add("client", deniedPort), add("remote", deniedPort))
	}
	f.start(t)
	f.flows(t, pairs[0].old)
	f.flows(t, pairs[1].old)
	from, changes := f.rounds.Load()+2, 0 // a round that begins now, before the first change
	must(t, f.waitFor(pairs[0].old, from))
	var slowest time.Duration
	for i, s := range list {
		if i > 0 { // from one kind of change to the next: also at once, and nothing may be seen of it
			c.enforced(t, c.change(t, append(deletions(list[i-1].states[0], s.states[0]), s.states[0]...)...),
				server.Node)
		}
		for k := range perKind {
			state := (k + 1) % 2
			round, start := f.rounds.Load(), time.Now()
			c.change(t, s.states[state]...)
			changes++
			for _, p := range pairs {
				open := p.old
				if state == 1 {
					open = p.new
				}
				if err := f.waitFor(open, round); err != nil {
					t.Fatalf("%s, change %d to state %d: %v\n%s", s.name, k+1, state, err, table(t, server.Node))
				}
			}
			slowest = max(slowest, time.Since(start))
		}
	}
	f.stop()
	to := f.rounds.Load()
	for _, p := range pairs {
		exactlyOne(t, p.old, p.new, from, to, changes)
	}
	for _, s := range free {
		s.checkAll(t, from, to)
	}
	for _, s := range denied {
		s.checkNone(t)
	}
	t.Logf("%d changes of %d kinds under %d datagrams/s; the slowest was seen after %d ms", changes, len(list),
		len(f.all())*1000, slowest.Milliseconds())
	c.change(t, asDeleted(list[len(list)-1].states[0])...)
	c.change(t, documents(t, openProfile)...)
}

// openProfile is the profile of pods in a lab.
const openProfile = `
apiVersion: projectcalico.org/v3
kind: Profile
metadata: {name: k8s-pod-network}
spec: {ingress: [{action: Allow}], egress: [{action: Allow}]}
`

// deletions returns the deletions of the objects of before that are not in after, except endpoints.
func deletions(before, after []entry) (list []entry) {
	stays := map[string]bool{}
	for _, d := range after {
		stays[d.path] = true
	}
	for _, d := range before {
		if d.value != "" && !stays[d.path] && !strings.HasPrefix(d.path, world.EndpointKeys) {
			list = append(list, entry{path: d.path})
		}
	}
	return list
}
