package nft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// comparison is one attempt to make the kernel's table the desired one, starting from the kernel's content.
type comparison struct {
	g      *Target
	actual *ruleset.Actual
	diff   ruleset.Changes
	read   bool // actual and diff are current
	search bool // something is refused for sure
}

// compare reads the kernel's table and commits the difference, except the parts that the kernel refuses.
func (g *Target) compare() error {
	g.status.Resyncs++
	a := &comparison{g: g}
	if err := a.refresh(); err != nil {
		return err
	}
	all := units(a.diff)
	held := g.held(all)
	var found []reconcile.Repair
	lost := false
	if g.known {
		requested := func(u unit) bool { return g.pending[u] || g.refused[u] != nil }
		c := g.replace(a.actual, a.diff, func(u unit) bool { return g.refused[u] != nil })
		found, lost = drift(a.actual, c, requested), lostBase(a.actual, c, requested)
	}
	bad, err := a.run(all, held)
	if err != nil {
		for _, u := range all { // some may be replaced now
			g.pending[u] = true
		}
		return err
	}
	g.refuse(bad, held)
	g.users = usersOf(g.table, a.diff, func(u unit) bool { return g.refused[u] != nil })
	g.repaired(found)
	g.lost = g.lost || lost
	clear(g.pending)
	g.known, g.compareAt = true, g.now().Add(g.Compare)
	return nil
}

// run commits the difference, and searches for refused units if need be.
func (a *comparison) run(all []unit, held map[unit]bool) (bad map[unit]error, err error) {
	isHeld := func(u unit) bool { return held[u] }
	refused, fatal := a.try(isHeld)
	if refused == nil || fatal != nil {
		return nil, fatal
	}
	var suspects []unit
	for _, u := range all {
		if !held[u] {
			suspects = append(suspects, u)
		}
	}
	a.search = true
	bad, fatal = isolate(suspects, refused, func(replaced func(unit) bool) (error, error) {
		return a.try(func(u unit) bool { return held[u] || replaced(u) })
	})
	if fatal == nil && bad == nil {
		return nil, fmt.Errorf("the kernel refuses the table, also with all changes replaced: %w", refused)
	}
	return bad, fatal
}

// try commits the difference with replacements.
func (a *comparison) try(replaced func(unit) bool) (refused, fatal error) {
	if !a.read {
		if err := a.refresh(); err != nil {
			return nil, err
		}
	}
	c := a.g.replace(a.actual, a.diff, replaced)
	if c.Empty() {
		return nil, nil
	}
	a.g.ahead = false
	err := a.g.commit(c)
	a.read = err != nil && !a.g.ahead
	switch {
	case err == nil:
		return nil, nil
	case hopeless(err), passes(err) && !a.lasts(err):
		return nil, err
	}
	return err, nil
}

// lasts: a transient error persists, so the request causes it. A replaced object may well use one that is to be
// deleted.
func (a *comparison) lasts(err error) bool {
	return errors.Is(err, unix.EBUSY) && !errors.Is(err, nftables.ErrUncertain) &&
		(a.search || a.g.failures >= transient || len(a.g.refused) > 0)
}

func (a *comparison) refresh() error {
	actual, err := a.g.kernel.ReadRules()
	if err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	a.actual, a.diff, a.read = actual, a.g.table.Difference(actual), true
	return nil
}

// held returns the refused units that still differ and whose time to be tried again has not come.
func (g *Target) held(differ []unit) map[unit]bool {
	now, held := g.now(), map[unit]bool{}
	for _, u := range differ {
		if r := g.refused[u]; r != nil && now.Before(r.retryAt) {
			held[u] = true
		}
	}
	return held
}

// refuse remembers the units that are replaced from now on, and no others.
func (g *Target) refuse(bad map[unit]error, held map[unit]bool) {
	now := g.now()
	for u := range g.refused {
		if bad[u] == nil && !held[u] {
			delete(g.refused, u)
		}
	}
	for u, err := range bad {
		r := g.refused[u]
		if r == nil || r.reason != err.Error() {
			r = &refusal{reason: err.Error(), since: now, attempts: attempts(r)}
			g.refused[u] = r
		}
		r.attempts++
		r.retryAt = now.Add(g.backoff.After(r.attempts))
	}
}

func attempts(r *refusal) int {
	if r == nil {
		return 0
	}
	return r.attempts
}
