package property

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

func parseNet(text string) netip.Prefix {
	p, err := policy.ParseNet(text)
	if err != nil {
		panic(err)
	}
	return p
}

// forEachSeed calls try with one seed after the other until it fails or time is up, with at least so many in any case.
// Reproduce with MANX_PROPERTY_SEED=n; try more with MANX_PROPERTY_WORLDS=n, which sets no time.
func forEachSeed(t *testing.T, least uint64, limit time.Duration, try func(seed uint64) bool) {
	t.Helper()
	setting := func(name string) (uint64, bool) {
		text := os.Getenv(name)
		n, err := strconv.ParseUint(text, 10, 64)
		if text != "" && err != nil {
			t.Fatalf("%s=%q is not a number", name, text)
		}
		return n, text != ""
	}
	if seed, ok := setting("MANX_PROPERTY_SEED"); ok {
		try(seed)
		return
	}
	worlds, ok := setting("MANX_PROPERTY_WORLDS")
	end := time.Now().Add(limit)
	seed := uint64(0)
	for (ok && seed < worlds || !ok && (seed < least || time.Now().Before(end))) && try(seed) {
		seed++
	}
	t.Logf("%d worlds", seed)
}

func text(t *ruleset.Table) string {
	var b strings.Builder
	_ = t.Text(&b, ruleset.TextOptions{})
	return b.String()
}

// differing shows the first lines in which two texts differ.
func differing(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	part := func(list []string) string { return strings.Join(list[max(0, i-4):min(len(list), i+8)], "\n") }
	return "has\n" + part(a) + "\nwant\n" + part(b)
}

func TestOutcomeDoesNotDependOnTheWay(t *testing.T) {
	forEachSeed(t, 20, 8*time.Second, func(seed uint64) bool { return runRandomChanges(t, seed) })
}

// runRandomChanges makes random changes from an empty world to a random world and back to an empty one.
func runRandomChanges(t *testing.T, seed uint64) bool {
	g := newGenerator(seed)
	config := g.config()
	empty := text(policy.Build(config, model.Set{}, hostLinks()).Table())
	calc, set := policy.New(config), model.Set{}
	calc.SetInterfaces(hostLinks())
	var kernel replica
	links := hostLinks()
	step := func(n int, keys []model.Key) bool {
		if g.one(6) {
			if links = hostLinks(); g.one(3) {
				delete(links, uplink)
			} else if g.one(2) {
				links["eth1"] = []netip.Addr{netip.MustParseAddr("192.0.2.77")}
			}
			calc.SetInterfaces(links)
		}
		switch {
		case len(keys) > 0:
			calc.Update(set, keys...)
		case g.one(2):
			calc.Update(set)
		default:
			calc.Settle()
		}
		if err := kernel.apply(calc.Table().TakeChanges()); err != nil {
			t.Errorf("seed %d, step %d: %v", seed, n, err)
			return false
		}
		if d := calc.Table().Difference(kernel.actual()); !d.Empty() {
			t.Errorf("seed %d, step %d, after %v: the changes do not lead to the table: %+v", seed, n, keys, d)
			return false
		}
		if !g.one(3) {
			return true
		}
		fresh := policy.Build(config, set, links)
		if got, want := text(calc.Table()), text(fresh.Table()); got != want {
			t.Errorf("seed %d, step %d, after %v: by steps and from scratch differ: %s", seed, n, keys,
				differing(got, want))
			return false
		}
		if got, want := badObjects(calc), badObjects(fresh); got != want {
			t.Errorf("seed %d, step %d, after %v: cannot be used: %s, from scratch: %s", seed, n, keys, got, want)
			return false
		}
		return true
	}
	steps := 4 + g.IntN(30)
	for n := range steps {
		keys := map[model.Key]bool{}
		for range g.IntN(10) {
			k := g.key()
			keys[k] = true
			if set[k] != nil && g.one(3) {
				delete(set, k)
			} else {
				set[k] = g.object(k)
			}
		}
		list := slices.Collect(maps.Keys(keys))
		slices.SortFunc(list, func(a, b model.Key) int { return strings.Compare(a.String(), b.String()) })
		g.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		if !step(n, list) {
			return false
		}
	}
	rest := slices.SortedFunc(maps.Keys(set), func(a, b model.Key) int {
		return strings.Compare(a.String(), b.String())
	})
	g.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	for len(rest) > 0 {
		n := min(len(rest), 1+g.IntN(12))
		for _, k := range rest[:n] {
			delete(set, k)
		}
		if !step(steps, rest[:n]) {
			return false
		}
		rest = rest[n:]
	}
	calc.SetInterfaces(hostLinks())
	calc.Settle()
	if got := text(calc.Table()); got != empty {
		t.Errorf("seed %d: something is left when all objects are gone: %s", seed, differing(got, empty))
		return false
	}
	return true
}

func badObjects(c *policy.Calculator) string {
	var list []string
	for k, reason := range c.Bad() {
		list = append(list, fmt.Sprint(k, ": ", reason))
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// replica is a kernel that makes exactly the requested changes, and fails for those that a kernel would refuse.
type replica struct {
	chains map[string]*ruleset.Chain
	sets   map[string]ruleset.Set
	in     map[string]map[ruleset.Element]bool
	maps   map[string]map[string]ruleset.Verdict
}

func (r *replica) apply(c ruleset.Changes) error {
	if r.chains == nil {
		*r = replica{map[string]*ruleset.Chain{}, map[string]ruleset.Set{}, map[string]map[ruleset.Element]bool{},
			map[string]map[string]ruleset.Verdict{}}
	}
	for _, s := range c.Sets {
		if err := r.set(s); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	for _, m := range c.Maps {
		if m.Deleted {
			delete(r.maps, m.Name)
			continue
		}
		if m.Created {
			r.maps[m.Name] = map[string]ruleset.Verdict{}
		}
		for k, v := range m.Remove {
			if r.maps[m.Name][k] != v {
				return fmt.Errorf("map %s has %v for %s, not %v", m.Name, r.maps[m.Name][k], k, v)
			}
			delete(r.maps[m.Name], k)
		}
		for k, v := range m.Add {
			if old, ok := r.maps[m.Name][k]; ok {
				return fmt.Errorf("map %s has %v for %s already", m.Name, old, k)
			}
			r.maps[m.Name][k] = v
		}
	}
	for _, ch := range c.Chains {
		if (ch.Old == nil) != (r.chains[ch.Name] == nil) || ch.Old != nil && !ch.Old.Equal(r.chains[ch.Name]) {
			return fmt.Errorf("chain %s differs from the old one of the change", ch.Name)
		}
		if ch.New == nil {
			delete(r.chains, ch.Name)
		} else {
			r.chains[ch.Name] = ch.New
		}
	}
	return r.checkComplete()
}

func (r *replica) set(s ruleset.SetChange) error {
	if s.Deleted {
		if _, ok := r.sets[s.Name]; !ok {
			return fmt.Errorf("is not there to be deleted")
		}
		delete(r.sets, s.Name)
		delete(r.in, s.Name)
		if !s.Created {
			return nil
		}
	}
	if s.Created {
		r.sets[s.Name], r.in[s.Name] = s.Set, map[ruleset.Element]bool{}
	}
	for _, e := range s.Remove {
		if !r.in[s.Name][e] {
			return fmt.Errorf("has no element %v to be removed", e)
		}
		delete(r.in[s.Name], e)
	}
	for _, e := range s.Add {
		if r.in[s.Name][e] {
			return fmt.Errorf("has element %v already", e)
		}
		r.in[s.Name][e] = true
	}
	return r.disjoint(s)
}

// disjoint: interval sets must not hold networks that overlap, plain ones none at all.
func (r *replica) disjoint(s ruleset.SetChange) error {
	if s.Type == ruleset.Ports {
		return nil
	}
	for a := range r.in[s.Name] {
		if !s.Interval && !a.Prefix.IsSingleIP() {
			return fmt.Errorf("is no interval set and has %v", a.Prefix)
		}
		for b := range r.in[s.Name] {
			if s.Interval && a != b && a.Prefix.Overlaps(b.Prefix) {
				return fmt.Errorf("has %v and %v, which overlap", a.Prefix, b.Prefix)
			}
		}
	}
	return nil
}

// complete: named objects must exist.
func (r *replica) checkComplete() error {
	verdict := func(where string, v ruleset.Verdict) error {
		if v.Chain != "" && r.chains[v.Chain] == nil {
			return fmt.Errorf("%s leads to chain %s, which is missing", where, v.Chain)
		}
		if v.Map != "" && r.maps[v.Map] == nil {
			return fmt.Errorf("%s uses map %s, which is missing", where, v.Map)
		}
		return nil
	}
	for name, c := range r.chains {
		for i := range c.Rules {
			if err := verdict("chain "+name, c.Rules[i].Verdict); err != nil {
				return err
			}
			for _, m := range c.Rules[i].Matches {
				if _, ok := r.sets[m.Set]; m.Set != "" && !ok {
					return fmt.Errorf("chain %s names set %s, which is missing", name, m.Set)
				}
			}
		}
	}
	for name, m := range r.maps {
		for k, v := range m {
			if err := verdict("map "+name+" for "+k, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *replica) actual() *ruleset.Actual {
	a := &ruleset.Actual{Chains: map[string]ruleset.ActualChain{}, Sets: map[string]ruleset.ActualSet{}, Maps: r.maps}
	for name, c := range r.chains {
		chain := ruleset.ActualChain{Base: c.Base}
		for i := range c.Rules {
			chain.Rules = append(chain.Rules, c.Rules[i].ID())
		}
		a.Chains[name] = chain
	}
	for name, s := range r.sets {
		a.Sets[name] = ruleset.ActualSet{Set: s, Elements: slices.Collect(maps.Keys(r.in[name]))}
	}
	return a
}
