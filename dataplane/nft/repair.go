package nft

import (
	"fmt"
	"slices"

	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// mostRepairs bounds the list of repairs: a mass edit is reported once.
const mostRepairs = 20

// Repairs returns the repairs of other programs' changes since the last call, and how many more there were.
func (g *Target) Repairs() (list []reconcile.Repair, more int) {
	list, more = g.repairs, g.moreRepairs
	g.repairs, g.moreRepairs = nil, 0
	return list, more
}

func (g *Target) repaired(list []reconcile.Repair) {
	g.status.DriftRepairs += uint64(len(list))
	n := min(len(list), mostRepairs-len(g.repairs))
	g.repairs = append(g.repairs, list[:n]...)
	g.moreRepairs += len(list) - n
}

// TakeLost reports whether packets may have passed without rules since the last call: the kernel has the table again,
// or a base chain, that another program had removed or changed.
func (g *Target) TakeLost() bool {
	lost := g.lost
	g.lost = false
	return lost
}

// lostBase reports whether the kernel lacks a base chain as desired, and no change requested here is why.
func lostBase(actual *ruleset.Actual, c ruleset.Changes, requested func(unit) bool) bool {
	return slices.ContainsFunc(c.Chains, func(ch ruleset.ChainChange) bool {
		return ch.New != nil && ch.New.Base != nil && (actual == nil || !requested(unit{chain, ch.Name}))
	})
}

// drift describes the changes not requested here: they undo edits by others.
func drift(actual *ruleset.Actual, c ruleset.Changes, requested func(unit) bool) []reconcile.Repair {
	var list []reconcile.Repair
	add := func(u unit, found, wanted string) {
		if !requested(u) {
			list = append(list, reconcile.Repair{Key: u.String(), Found: found, Wanted: wanted})
		}
	}
	if actual == nil {
		if c.Empty() {
			return nil
		}
		wanted := fmt.Sprintf("%d chains, %d sets, %d maps", len(c.Chains), len(c.Sets), len(c.Maps))
		return []reconcile.Repair{{Key: "table inet manx", Wanted: wanted}}
	}
	for _, ch := range c.Chains {
		add(unit{chain, ch.Name}, foundChain(actual, ch), wantedChain(ch))
	}
	for _, s := range c.Sets {
		found, wanted := content(s.Created, s.Deleted, len(s.Add), len(s.Remove))
		add(unit{set, s.Name}, found, wanted)
	}
	for _, m := range c.Maps {
		found, wanted := content(m.Created, m.Deleted, len(m.Add), len(m.Remove))
		add(unit{vmap, m.Name}, found, wanted)
	}
	return list
}

func foundChain(actual *ruleset.Actual, ch ruleset.ChainChange) string {
	if ch.Old == nil {
		return ""
	}
	return fmt.Sprintf("other rules (%d)", len(actual.Chains[ch.Name].Rules))
}

func wantedChain(ch ruleset.ChainChange) string {
	if ch.New == nil {
		return ""
	}
	return fmt.Sprintf("%d rules", len(ch.New.Rules))
}

func content(created, deleted bool, add, remove int) (found, wanted string) {
	switch {
	case created && deleted:
		return "another type", fmt.Sprintf("%d elements", add)
	case created:
		return "", fmt.Sprintf("%d elements", add)
	case deleted:
		return "somebody else's", ""
	}
	return fmt.Sprintf("%d elements missing or changed, %d not ours", add, remove), "as desired"
}
