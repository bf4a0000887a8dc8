package kerneltest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/ruleset"
)

func TestFakeRules(t *testing.T) {
	rule := ruleset.Rule{Matches: []ruleset.Match{{Field: ruleset.Source, Set: "h4/a"}}, Verdict: ruleset.Verdict{
		Action: ruleset.Accept}}
	good := ruleset.Changes{
		Chains: []ruleset.ChainChange{{Name: "c", New: &ruleset.Chain{Name: "c", Rules: []ruleset.Rule{rule}}}},
		Sets:   []ruleset.SetChange{{Set: ruleset.Set{Name: "h4/a", Type: ruleset.Addresses4}, Created: true}},
	}
	f := NewRules()
	if a, err := f.ReadRules(); a != nil || err != nil {
		t.Fatalf("ReadRules of nothing = %v, %v", a, err)
	}
	if err := f.CommitRules(ruleset.Changes{Chains: good.Chains}); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("a rule that names no set: %v", err)
	}
	if a, _ := f.ReadRules(); a != nil {
		t.Fatalf("a refused commit left %v", a)
	}
	f.Lose(func(ruleset.Changes) bool { return true })
	if err := f.CommitRules(good); !errors.Is(err, nftables.ErrUncertain) {
		t.Fatalf("a lost answer: %v", err)
	}
	a, _ := f.ReadRules()
	if !slices.Equal(a.Chains["c"].Rules, []string{rule.ID()}) {
		t.Fatalf("chain c is %v", a.Chains["c"])
	}
	f.Refuse(func(ruleset.Changes) error { return unix.EINVAL })
	if err := f.CommitRules(good); !errors.Is(err, unix.EINVAL) || f.Commits() != 3 {
		t.Fatalf("refused commit %d: %v", f.Commits(), err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	notifications := make(chan struct{}, 8)
	go func() { done <- f.WatchRules(ctx, func() { notifications <- struct{}{} }) }()
	<-notifications // it listens
	f.Edit(func(*ruleset.Actual) *ruleset.Actual { return nil })
	<-notifications
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
