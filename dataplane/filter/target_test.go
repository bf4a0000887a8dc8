package filter

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/hoststate"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// links has the host's interfaces, which may be out of reach.
type links struct {
	*kerneltest.Kernel
	err   error
	calls int
}

func (l *links) ListLinks() ([]kernel.Link, error) {
	if l.calls++; l.err != nil {
		return nil, l.err
	}
	return l.Kernel.ListLinks()
}

func newTarget(rules nftables.Rules, l kernel.Links, programmed func(int)) *Target {
	return New(Config{Rules: rules, Links: l, Policy: policy.Config{Node: "here"}, Loop: reconcile.NewLoop(),
		Logger: zap.NewNop(), Programmed: programmed})
}

func state() *hoststate.Host {
	h := hoststate.New("here", "")
	h.Take(hoststate.State{Reader: model.NewSet()})
	return h
}

// While the host's interfaces cannot be listed, nothing is changed, and the reason is reported. They are listed once in
// each Flush, and soon again.
func TestNothingIsChangedBeforeInterfacesAreKnown(t *testing.T) {
	rules, l := kerneltest.NewRules(), &links{Kernel: kerneltest.New(), err: errors.New("no buffer space available")}
	reached := 0
	target := newTarget(rules, l, func(int) { reached++ })
	target.SetState(state())
	if n, _, err := target.Flush(); n != 0 || err != nil || rules.Commits() != 0 || reached != 0 || l.calls != 1 {
		t.Errorf("%d transactions, %v, called %d times, listed %d times", n, err, reached, l.calls)
	}
	if h := target.Health(); h.Failures != 1 || !strings.Contains(h.Problem.Error(), "no buffer space available") {
		t.Errorf("%+v", h)
	}
	if d := target.Next(); d != linksRetry {
		t.Errorf("tried again in %v, want %v", d, linksRetry)
	}
	l.err = nil
	if n, _, err := target.Flush(); n != 1 || err != nil || reached != 1 || target.Reached() == nil {
		t.Errorf("%d transactions, %v, called %d times, reached %v", n, err, reached, target.Reached())
	}
	if h := target.Health(); h != (reconcile.Health{Part: "policy"}) {
		t.Errorf("%+v", h)
	}
	calls := l.calls
	target.Handle([]kernel.Event{{Type: kernel.EventRoute}})
	if target.Flush(); l.calls != calls {
		t.Error("a route has the interfaces listed again")
	}
	target.Handle([]kernel.Event{{Type: kernel.EventAddress}})
	if target.Flush(); l.calls != calls+1 {
		t.Errorf("an address has the interfaces listed %d times", l.calls-calls)
	}
}

// Rules that the kernel refuses as a whole are reported, and the earlier content remains the state reached.
func TestRefusedRulesAreNotReached(t *testing.T) {
	rules, reached := kerneltest.NewRules(), 0
	target := newTarget(rules, nil, func(int) { reached++ })
	first := state()
	target.SetState(first)
	if _, _, err := target.Flush(); err != nil || reached != 1 {
		t.Fatal(err, reached)
	}
	was := target.Reached()
	rules.Refuse(func(ruleset.Changes) error { return unix.EPERM })
	w := model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"},
		&model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali1",
			IPNetworks: []string{"10.0.0.1/32"}}})
	next := model.NewSet(w)
	first.Take(hoststate.State{Reader: next, Changed: []model.Key{w.Key}})
	target.SetState(first)
	if _, _, err := target.Flush(); !errors.Is(err, unix.EPERM) || reached != 1 ||
		target.Reached().Get(w.Key) != was.Get(w.Key) {
		t.Errorf("%v, called %d times", err, reached)
	}
	if h := target.Health(); h.Failures != 1 || h.Problem == nil {
		t.Errorf("%+v", h)
	}
	rules.Refuse(nil)
	target.Retry()
	if _, _, err := target.Flush(); err != nil || reached != 2 || target.Reached().Get(w.Key) == nil {
		t.Errorf("%v, called %d times", err, reached)
	}
}
