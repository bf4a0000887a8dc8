package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/integration/e2e/world"
)

// checkStreams requires that from now on all datagrams of some streams arrive, and none of others.
func (f *flood) checkStreams(t *testing.T, when string, pass, stop []*stream) {
	t.Helper()
	// One round may have begun before the preceding change was done.
	from := f.rounds.Load() + 2
	to := from + 60
	for _, s := range pass {
		eventually(t, func() error {
			if lost := s.missing(from, min(to, max(from, f.rounds.Load()-1))); len(lost) > 0 {
				return fmt.Errorf("%s: %s: %d datagrams are lost from round %d on: %v", when, s.name, len(lost), from,
					lost[:min(5, len(lost))])
			}
			if f.rounds.Load() <= to {
				return fmt.Errorf("the flood has ended")
			}
			return nil
		})
	}
	for _, s := range stop { // they are sent before those that have arrived, or right after
		if n := int(to-from) + 1 - len(s.missing(from, to)); n > 0 {
			t.Errorf("%s: %s: %d of %d datagrams pass", when, s.name, n, to-from+1)
		}
	}
}

// testTierGoes deletes a tier that still has policies, which only a program can do, and brings it back, under traffic.
// Its policies are still evaluated, behind all others, and open nothing. Endpoints that they do not select are
// unaffected.
func (c *cluster) testTierGoes(t *testing.T) {
	b := c.Pods["b"]
	const first, second, third, free = 7201, 7202, 7203, 7204
	tier := documents(t, "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: first}\nspec: {order: 10}\n")
	inTier := func(name, selector string) string {
		return world.GlobalPolicy(name,
			fmt.Sprintf("tier: first, selector: role == '%s', ingress: [%s, {action: Pass, protocol: "+
				"UDP, destination: {ports: [%d]}}]", selector, rule("Allow", first), second))
	}
	policies := documents(t, inTier("first.both", "b")+inTier("only", "far")+
		world.GlobalPolicy("second", "selector: role == 'b', ingress: ["+rule("Allow", second, third)+"]")+
		world.GlobalPolicy("bystander", "selector: role == 'a', ingress: ["+rule("Allow", free)+"]"))
	c.temporary(t, append(tier, policies...)...)

	f := newFlood(time.Millisecond)
	add := func(name, from, to string, i int, port uint16) *stream {
		return f.add(t, name, c.Pods[from].Namespace, at(c.Pods[to].IPs[i], port), c.Pods[to].Namespace)
	}
	var tierAllows, tierAllowsAlone, otherAllows, passed, bystanders []*stream
	for i := range b.IPs {
		tierAllows = append(tierAllows, add("what the tier allows", "a", "b", i, first))
		tierAllowsAlone = append(tierAllowsAlone, add("what the tier allows where no other has policies", "a", "far", i,
			first))
		otherAllows = append(otherAllows, add("what another tier allows, to which the tier passes", "far", "b", i,
			second))
		passed = append(passed, add("what the tier passes to the pod's profile", "a", "far", i, second))
		bystanders = append(bystanders, add("to a pod without policies of that tier", "far", "a", i, free),
			add("the same from its host", "b", "a", i, free))
	}
	beyond := []*stream{add("what another tier allows, but the end of the tier denies", "far", "b", 0, third),
		add("the same", "far", "b", 1, third)}
	denied := []*stream{add("to a pod without policies of that tier, denied there", "b", "a", 0, first),
		add("the same", "b", "a", 1, first)}
	f.start(t)
	f.flows(t, tierAllows[0])
	start := f.rounds.Load() + 2
	join := func(lists ...[]*stream) (all []*stream) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	there := func(when string) {
		t.Helper()
		f.checkStreams(t, when, join(tierAllows, tierAllowsAlone, otherAllows, passed, bystanders),
			join(beyond, denied))
	}
	there("with the tier")
	if out, err := c.N1.Manxctl("delete", "tier", "first"); err == nil || !strings.Contains(out, "first.both") {
		t.Errorf("a tier with policies may be deleted: %v\n%s", err, out)
	}
	for range 2 {
		c.enforced(t, c.change(t, asDeleted(tier)...))
		// Evaluated last, its policies come behind the end of tier default where that has policies, too.
		f.checkStreams(t, "without the tier", join(tierAllowsAlone, otherAllows, beyond, passed, bystanders),
			join(tierAllows, denied))
		c.enforced(t, c.change(t, tier...))
		there("with the tier again")
	}
	// A policy of an unknown tier.
	lost := documents(t, world.GlobalPolicy("unknown.x",
		"tier: unknown, selector: role == 'far', ingress: ["+rule("Allow", first)+
			"]"))
	c.enforced(t, c.change(t, lost...))
	f.checkStreams(t, "with a policy of an unknown tier", join(tierAllows, tierAllowsAlone, otherAllows, bystanders),
		join(beyond, denied, passed))
	c.enforced(t, c.change(t, asDeleted(lost)...))
	there("without it")
	f.stop()
	for _, s := range join(bystanders, otherAllows, tierAllowsAlone) {
		s.checkAll(t, start, f.rounds.Load())
	}
	for _, s := range denied {
		s.checkNone(t)
	}
}

// testSpellings stores a policy under the old spelling of its name, then under both, then under today's, under traffic.
func (c *cluster) testSpellings(t *testing.T) {
	b := c.Pods["b"]
	const one, other, always = 7211, 7212, 7213
	spec := func(port int) string { return "selector: role == 'b', ingress: [" + rule("Allow", port, always) + "]" }
	old, current := documents(t, world.GlobalPolicy("default.spelt", spec(one))), documents(t,
		world.GlobalPolicy("spelt", spec(other)))
	if old[0].path == current[0].path || !strings.HasSuffix(old[0].path, "/default.spelt") {
		t.Fatalf("the spellings are kept as %s and %s", old[0].path, current[0].path)
	}
	c.temporary(t, old...)
	defer func() { c.enforced(t, c.change(t, asDeleted(current)...)) }()
	f := newFlood(time.Millisecond)
	var ones, others, free []*stream
	for i, from := range []string{"a", "far"} {
		add := func(name string, port uint16) *stream {
			return f.add(t, name+" from "+from, c.Pods[from].Namespace, at(b.IPs[i], port), b.Namespace)
		}
		ones, others = append(ones, add("what the old one allows", one)),
			append(others, add("what today's allows", other))
		free = append(free, add("what both allow", always))
	}
	f.start(t)
	f.flows(t, free[0])
	f.flows(t, free[1])
	start := f.rounds.Load() + 2
	f.checkStreams(t, "the old spelling", append(ones, free...), others)
	c.enforced(t, c.change(t, current...))
	f.checkStreams(t, "both spellings", append(others, free...), ones)
	eventually(t, func() error {
		out, err := c.N2.Manxctl("node", "problems")
		if !strings.Contains(out, "default.spelt") {
			return fmt.Errorf("the second spelling is no problem: %v\n%s", err, out)
		}
		return nil
	})
	c.enforced(t, c.change(t, asDeleted(current)...))
	f.checkStreams(t, "the old spelling again", append(ones, free...), others)
	c.enforced(t, c.change(t, append(asDeleted(old), current...)...))
	f.checkStreams(t, "moved to today's", append(others, free...), ones)
	f.stop()
	for _, s := range free {
		s.checkAll(t, start, f.rounds.Load())
	}
}
