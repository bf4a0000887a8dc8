package kerneltest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// Rules is the table in memory, for tests. It refuses the same changes as the kernel: rules and entries that name
// missing chains, sets or maps, and the removal of missing objects. The zero value is not usable; see NewRules.
type Rules struct {
	mu       sync.Mutex
	actual   *ruleset.Actual
	commits  int
	reads    int
	refuse   func(ruleset.Changes) error
	lose     func(ruleset.Changes) bool
	failRead func() error
	watchers map[int]func()
	next     int
}

var _ nftables.Rules = (*Rules)(nil)

// NewRules returns a kernel without the table.
func NewRules() *Rules {
	return &Rules{watchers: map[int]func(){}}
}

// Refuse calls f before each commit; its error is the commit's, and nothing is changed. nil refuses nothing.
func (f *Rules) Refuse(refuse func(ruleset.Changes) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
}

// Lose calls f after each successful commit; true loses the response, so that CommitRules returns nftables.ErrUncertain
// although the changes were made. nil loses none.
func (f *Rules) Lose(lose func(ruleset.Changes) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose = lose
}

// FailRead calls f at each ReadRules; its error is the result. nil fails none.
func (f *Rules) FailRead(fail func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failRead = fail
}

// Commits returns how many transactions were tried, refused ones among them.
func (f *Rules) Commits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commits
}

// Reads returns how often ReadRules was called.
func (f *Rules) Reads() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads
}

// Edit simulates another program: change gets the table, nil if there is none, and returns the new one. Watchers are
// notified.
func (f *Rules) Edit(change func(*ruleset.Actual) *ruleset.Actual) {
	f.mu.Lock()
	f.actual = change(f.actual)
	watchers := slices.Collect(maps.Values(f.watchers))
	f.mu.Unlock()
	for _, handle := range watchers {
		handle()
	}
}

// ReadRules implements Rules.
func (f *Rules) ReadRules() (*ruleset.Actual, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.failRead != nil {
		if err := f.failRead(); err != nil {
			return nil, err
		}
	}
	return cloneActual(f.actual), nil
}

func cloneActual(a *ruleset.Actual) *ruleset.Actual {
	if a == nil {
		return nil
	}
	c := ruleset.NewActual()
	for name, chain := range a.Chains {
		if chain.Base != nil {
			base := *chain.Base
			chain.Base = &base
		}
		chain.Rules = slices.Clone(chain.Rules)
		c.Chains[name] = chain
	}
	for name, set := range a.Sets {
		set.Elements = slices.Clone(set.Elements)
		c.Sets[name] = set
	}
	for name, elements := range a.Maps {
		c.Maps[name] = maps.Clone(elements)
	}
	return c
}

// CommitRules implements Rules.
func (f *Rules) CommitRules(c ruleset.Changes) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.commits++
	a, err := f.changed(c)
	if err != nil {
		return err
	}
	f.actual = a
	if f.lose != nil && f.lose(c) {
		return fmt.Errorf("commit: %w", nftables.ErrUncertain)
	}
	return nil
}

// CheckRules implements Rules.
func (f *Rules) CheckRules(c ruleset.Changes) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.changed(c)
	return err
}

// changed returns the table after the changes.
func (f *Rules) changed(c ruleset.Changes) (*ruleset.Actual, error) {
	if f.refuse != nil {
		if err := f.refuse(c); err != nil {
			return nil, err
		}
	}
	a := cloneActual(f.actual)
	if a == nil {
		a = ruleset.NewActual()
	}
	return a, change(a, c)
}

// change makes the changes in the order of the kernel's driver.
func change(a *ruleset.Actual, c ruleset.Changes) error {
	for _, m := range c.Maps {
		if err := removeVerdicts(a, m); err != nil {
			return err
		}
	}
	for _, ch := range c.Chains {
		if _, ok := a.Chains[ch.Name]; ch.Old != nil && !ok {
			return fmt.Errorf("chain %s: %w", ch.Name, unix.ENOENT)
		}
		delete(a.Chains, ch.Name)
	}
	for _, s := range c.Sets {
		if err := changeSet(a, s); err != nil {
			return err
		}
	}
	for _, ch := range c.Chains {
		if ch.New != nil {
			a.Chains[ch.Name] = actualChain(ch.New)
		}
	}
	for _, m := range c.Maps {
		if m.Created && a.Maps[m.Name] == nil {
			a.Maps[m.Name] = map[string]ruleset.Verdict{}
		}
	}
	for _, ch := range c.Chains {
		if err := checkNames(a, ch.New); err != nil {
			return err
		}
	}
	for _, m := range c.Maps {
		if err := addVerdicts(a, m); err != nil {
			return err
		}
	}
	return nil
}

func actualChain(c *ruleset.Chain) ruleset.ActualChain {
	a := ruleset.ActualChain{}
	if c.Base != nil {
		base := *c.Base
		a.Base = &base
	}
	for _, r := range c.Rules {
		a.Rules = append(a.Rules, r.ID())
	}
	return a
}

func changeSet(a *ruleset.Actual, c ruleset.SetChange) error {
	set, ok := a.Sets[c.Name]
	if !ok && !c.Created {
		return fmt.Errorf("set %s: %w", c.Name, unix.ENOENT)
	}
	if c.Deleted {
		delete(a.Sets, c.Name)
		ok = false
	}
	if c.Deleted && !c.Created {
		return nil
	}
	if !ok {
		set = ruleset.ActualSet{Set: c.Set}
		set.Comment = ""
	}
	there := make(map[ruleset.Element]bool, len(set.Elements)+len(c.Add))
	for _, e := range set.Elements {
		there[e] = true
	}
	for _, e := range c.Remove {
		if !there[e] {
			return fmt.Errorf("set %s: remove %v: %w", c.Name, e, unix.ENOENT)
		}
		delete(there, e)
	}
	for _, e := range c.Add {
		there[e] = true
	}
	set.Elements = slices.SortedFunc(maps.Keys(there), ruleset.CompareElements)
	a.Sets[c.Name] = set
	return nil
}

func removeVerdicts(a *ruleset.Actual, c ruleset.MapChange) error {
	entries, ok := a.Maps[c.Name]
	if !ok && !c.Created {
		return fmt.Errorf("map %s: %w", c.Name, unix.ENOENT)
	}
	for iface := range c.Remove {
		if _, ok := entries[iface]; !ok {
			return fmt.Errorf("map %s: remove %s: %w", c.Name, iface, unix.ENOENT)
		}
		delete(entries, iface)
	}
	if c.Deleted {
		delete(a.Maps, c.Name)
	}
	return nil
}

func addVerdicts(a *ruleset.Actual, c ruleset.MapChange) error {
	for iface, v := range c.Add {
		if _, ok := a.Chains[v.Chain]; !ok {
			return fmt.Errorf("map %s: %s leads to chain %s: %w", c.Name, iface, v.Chain, unix.ENOENT)
		}
		if old, ok := a.Maps[c.Name][iface]; ok && old != v {
			return fmt.Errorf("map %s: %s: %w", c.Name, iface, unix.EEXIST)
		}
		a.Maps[c.Name][iface] = v
	}
	return nil
}

// checkNames refuses a chain whose rules name missing objects.
func checkNames(a *ruleset.Actual, c *ruleset.Chain) error {
	if c == nil {
		return nil
	}
	for i, r := range c.Rules {
		for _, m := range r.Matches {
			if _, ok := a.Sets[m.Set]; m.Set != "" && !ok {
				return fmt.Errorf("chain %s: rule %d names set %s: %w", c.Name, i+1, m.Set, unix.ENOENT)
			}
		}
		if _, ok := a.Chains[r.Verdict.Chain]; r.Verdict.Chain != "" && !ok {
			return fmt.Errorf("chain %s: rule %d leads to chain %s: %w", c.Name, i+1, r.Verdict.Chain, unix.ENOENT)
		}
		if _, ok := a.Maps[r.Verdict.Map]; r.Verdict.Map != "" && !ok {
			return fmt.Errorf("chain %s: rule %d names map %s: %w", c.Name, i+1, r.Verdict.Map, unix.ENOENT)
		}
	}
	return nil
}

// DeleteRules implements Rules.
func (f *Rules) DeleteRules() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.actual = nil
	return nil
}

// WatchRules implements Rules.
func (f *Rules) WatchRules(ctx context.Context, handle func()) error {
	changed := make(chan struct{}, 1)
	f.mu.Lock()
	id := f.next
	f.next++
	f.watchers[id] = func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.watchers, id)
		f.mu.Unlock()
	}()
	handle()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			handle()
		}
	}
}

// ChainCounters implements Rules; nothing counts.
func (f *Rules) ChainCounters([]string) (map[string][]nftables.Counter, error) { return nil, nil }

// NamedCounters implements Rules; nothing counts.
func (f *Rules) NamedCounters() (map[string]nftables.Counter, error) { return nil, nil }

// RuleCounters implements Rules; nothing counts.
func (f *Rules) RuleCounters() (map[string][]nftables.Counter, error) { return nil, nil }
