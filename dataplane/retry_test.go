package dataplane

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// retried requests a retry from the agent of a world, while its clock stands still.
func (w *world) retried(part string) Retried {
	w.t.Helper()
	done := make(chan []Retried, 1)
	w.agent.put(func(b *batch) { b.retries = append(b.retries, done) })
	w.agent.step()
	for _, r := range <-done {
		if r.Part == part {
			return r
		}
	}
	w.t.Fatalf("%s is not reported", part)
	return Retried{}
}

// TestRetryDoesNotWait: the back-off has become long, and the clock stands still.
func TestRetryDoesNotWait(t *testing.T) {
	w := newWorld(t)
	w.agent.set(cluster())
	p := netip.MustParsePrefix("10.77.0.0/26")
	w.agent.Learn([]locrib.Route{{Prefix: p, Paths: []locrib.Path{{NextHop: netip.MustParseAddr("10.1.0.7")}},
		Metric: 1024}})
	for i := range 1000 {
		w.fake.Fail("ApplyRoutes", i, unix.EPERM)
	}
	for range 8 {
		w.clock = w.clock.Add(time.Minute)
		w.agent.step()
	}
	before := w.agent.Status().Failed
	if r := w.retried("routes"); before == 0 || r.Failed != before || r.Failing != before ||
		!strings.Contains(r.Reason, "operation not permitted") {
		t.Fatalf("while the kernel refuses: %+v, %d had failed", r, before)
	}
	w.fake.Heal()
	w.agent.step()
	if n := w.agent.Status().Failed; n != before {
		t.Fatalf("%d routes fail without a retry, want %d: the test proves nothing", n, before)
	}
	if r := w.retried("routes"); r != (Retried{Part: "routes", Failed: before}) {
		t.Errorf("after the kernel is healed: %+v", r)
	}
	if s, ok := w.agent.Route(p); !ok || s.Phase != "applied" {
		t.Errorf("the route is %+v", s)
	}
}

func TestRetryBeforeThereIsAState(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); _ = w.agent.Run(ctx) }()
	if _, err := w.agent.Retry(t.Context()); !errors.Is(err, ErrNotStarted) {
		t.Errorf("error %v, want ErrNotStarted", err)
	}
	cancel()
	<-done
	over, stop := context.WithCancel(t.Context())
	stop()
	if _, err := w.agent.Retry(over); !errors.Is(err, context.Canceled) {
		t.Errorf("of an agent that has ended: %v", err)
	}
}

// TestRetryOfPolicy: rules that the kernel refused are tried at once.
func TestRetryOfPolicy(t *testing.T) {
	k := kerneltest.NewRules()
	a := NewPolicy(PolicyConfig{Rules: k, Policy: policy.Config{Node: "node-1"}, Logger: zap.NewNop()})
	retry := func() (Retried, bool) {
		done := make(chan []Retried, 1)
		a.put(func(b *batch) { b.retries = append(b.retries, done) })
		a.step()
		r, ok := <-done
		return slices.Concat(r, []Retried{{}})[0], ok
	}
	if _, ok := retry(); ok {
		t.Error("something was tried before there was a state")
	}
	k.Refuse(func(ruleset.Changes) error { return unix.EPERM })
	a.set(model.NewSet())
	a.step()
	if r, _ := retry(); r.Failed != 1 || r.Failing != 1 || !strings.Contains(r.Reason, "operation not permitted") {
		t.Fatalf("while the kernel refuses: %+v", r)
	}
	k.Refuse(nil)
	if a.step(); a.Status().InSync {
		t.Fatal("the rules are there without a retry: the test proves nothing")
	}
	if r, _ := retry(); r != (Retried{Part: "policy", Failed: 1}) || !a.Status().InSync {
		t.Errorf("after the kernel is healed: %+v", r)
	}
}
