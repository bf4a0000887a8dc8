package nft

import (
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// refusedComment marks the rule in place of a refused one.
const refusedComment = "refused by the kernel, all is dropped"

// closed is the replacement for a chain's refused content: nothing passes.
func closed(name string, base *ruleset.Base, counter string) *ruleset.Chain {
	return &ruleset.Chain{Name: name, Base: base, Rules: []ruleset.Rule{
		{Counter: true, CountedBy: counter, Verdict: ruleset.Verdict{Action: ruleset.Drop}, Comment: refusedComment},
	}}
}

// replace returns c, the difference between the table and actual, with replacements for the units for which replaced
// returns true, so that nothing opens:
//   - a chain drops all; so do the chains that name a refused set;
//   - a set keeps its old content, or is not made;
//   - a map loses the entries that change: packets without an entry are dropped;
//   - a base chain stays as it is, since to drop all in it would cut off the host. A new one is not made, except where
//     packets are forwarded: there it drops all;
//   - an obsolete object that is still used stays as it is.
func (g *Target) replace(actual *ruleset.Actual, c ruleset.Changes, replaced func(unit) bool) ruleset.Changes {
	t := g.table
	users := usersOf(t, c, replaced)
	var r ruleset.Changes
	for _, ch := range c.Chains {
		if replaced(unit{chain, ch.Name}) || users[ch.Name] != "" {
			r.Chains = g.appendClosed(r.Chains, actual, ch)
		} else {
			r.Chains = append(r.Chains, ch)
		}
		delete(users, ch.Name)
	}
	for name := range users {
		ch := t.Chain(name)
		r.Chains = g.appendClosed(r.Chains, actual,
			ruleset.ChainChange{Name: name, Old: &ruleset.Chain{Name: name, Base: ch.Base}, New: ch})
	}
	slices.SortFunc(r.Chains, func(a, b ruleset.ChainChange) int { return strings.Compare(a.Name, b.Name) })
	for _, s := range c.Sets {
		if !replaced(unit{set, s.Name}) {
			r.Sets = append(r.Sets, s)
		}
	}
	for _, m := range c.Maps {
		if !replaced(unit{vmap, m.Name}) {
			r.Maps = append(r.Maps, m)
		} else if !m.Deleted && (m.Created || len(m.Remove) > 0) {
			m.Add = nil
			r.Maps = append(r.Maps, m)
		}
	}
	return r
}

// usersOf returns the chains that name sets which are to be replaced, each with one such set.
func usersOf(t *ruleset.Table, c ruleset.Changes, replaced func(unit) bool) map[string]string {
	sets := map[string]bool{}
	for _, s := range c.Sets {
		if replaced(unit{set, s.Name}) {
			sets[s.Name] = true
		}
	}
	users := map[string]string{}
	if len(sets) == 0 {
		return users
	}
	for _, name := range t.Chains() {
		for _, r := range t.Chain(name).Rules {
			for _, m := range r.Matches {
				if sets[m.Set] {
					users[name] = m.Set
				}
			}
		}
	}
	return users
}

// appendClosed appends the changes that make a chain drop all, if that is allowed and not so already.
func (g *Target) appendClosed(list []ruleset.ChainChange, actual *ruleset.Actual,
	ch ruleset.ChainChange) []ruleset.ChainChange {
	var base *ruleset.Base
	switch {
	case ch.New == nil:
		return list
	case ch.Old != nil && ch.Old.Base != nil, ch.Old != nil && ch.New.Base != nil:
		return list
	case ch.New.Base != nil:
		if base = ch.New.Base; base.Hook != ruleset.Forward || base.Type != ruleset.Filter {
			return list
		}
	}
	ch.New = closed(ch.Name, base, g.Refused)
	if ch.Old != nil && isClosed(actual, ch) {
		return list
	}
	return append(list, ch)
}

func isClosed(actual *ruleset.Actual, ch ruleset.ChainChange) bool {
	a, ok := actual.Chains[ch.Name]
	return ok && len(a.Rules) == 1 && a.Rules[0] == ch.New.Rules[0].ID()
}
