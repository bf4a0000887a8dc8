package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// flushCounter counts the flushes of a target.
type flushCounter struct {
	Target
	n *int
}

func (c flushCounter) Flush() (int, int, error) {
	*c.n++
	return c.Target.Flush()
}

// A learned route does not cause a check of interfaces, limits and files. Every other change causes one, and so does a
// target that is due.
func TestLearnedRoutesFlushRoutesAlone(t *testing.T) {
	fake := kerneltest.New()
	fake.PutLink(kernel.Link{Index: 2, Name: "eth0", MTU: 1500, Up: true, Running: true})
	fake.PutAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("10.1.0.5/24")})
	fake.PutRoute(kernel.Route{Dst: netip.MustParsePrefix("10.1.0.0/24"), Protocol: kernel.ProtocolKernel,
		Type: kernel.Unicast, NextHops: []kernel.NextHop{{Link: 2}}})
	now := time.Unix(1e9, 0)
	a := newHostAgent(Config{Kernel: fake, NodeName: "node-1", Logger: zap.NewNop()}, func() time.Time { return now })
	a.loop.Background = func(f func()) { f() }
	counts := make([]int, len(a.targets))
	for i, target := range a.targets {
		if !learns(target) {
			a.targets[i] = flushCounter{target, &counts[i]}
		}
	}
	step := func(what string, others bool) {
		t.Helper()
		before := slices.Clone(counts)
		a.step()
		for i, target := range a.targets {
			if !learns(target) && (counts[i] > before[i]) != others {
				t.Errorf("%s: %s was flushed %d times", what, target.Name(), counts[i]-before[i])
			}
		}
	}
	announce := func(prefix string) { a.Learn([]locrib.Route{learned(prefix, 1024, "10.1.0.9")}) }

	a.SetState(State{Reader: baseObjects(), All: true})
	step("the first state", true)
	step("the addresses of connections have been read", true)
	announce("192.0.2.0/24")
	step("a learned route", false)
	if s, _ := a.Route(netip.MustParsePrefix("192.0.2.0/24")); s.Phase != "applied" {
		t.Fatalf("the route is %+v", s)
	}
	announce("192.0.3.0/24")
	a.SetPolicy(endpointstatus.Policy{})
	step("a learned route, and policy is in the kernel", true)
	announce("192.0.4.0/24")
	cali1 := kernel.Link{Index: 3, Name: "cali1", Up: true}
	fake.PutLink(cali1)
	a.addEvents([]kernel.Event{{Type: kernel.EventLink, Link: cali1}})
	step("a learned route, and a new interface", true)
	announce("192.0.5.0/24")
	a.Resync()
	step("a learned route, and everything is to be compared", true)
	announce("192.0.6.0/24")
	step("a learned route again", false)
	step("nothing: the time has come, or somebody beside the loop is done", true)
	now = now.Add(time.Hour)
	announce("192.0.7.0/24")
	step("a learned route, an hour later", true)
	fake.Fail("ApplyRoutes", fake.Calls("ApplyRoutes")+1, errors.New("no"))
	announce("192.0.8.0/24")
	step("a learned route that the kernel refuses", false)
	announce("192.0.9.0/24")
	step("a learned route while another fails", true)
}

// After a flush of many routes the agent waits a moment for more, unless as many wait already.
func TestAgentWaitsForMoreRoutesUnlessEnoughWait(t *testing.T) {
	now := time.Unix(1e9, 0)
	a := newHostAgent(Config{Kernel: kerneltest.New(), NodeName: "node-1", Logger: zap.NewNop()},
		func() time.Time { return now })
	waits := 0
	a.loop.After = func(time.Duration) <-chan time.Time {
		waits++
		at := make(chan time.Time, 1)
		at <- now
		return at
	}
	a.SetState(State{Reader: baseObjects(), All: true})
	a.step()
	for i, x := range []struct {
		busy          bool
		routes, waits int
	}{{false, 1, 0}, {false, fullBatch, 0}, {true, 1, 1}, {true, fullBatch - 1, 1}, {true, fullBatch, 0}} {
		for n := range x.routes {
			a.Learn([]locrib.Route{learned(fmt.Sprintf("192.0.%d.%d/32", i, n), 1024, "10.1.0.9")})
		}
		a.burst, waits = reconcile.Burst{}, 0
		if x.busy {
			a.burst.Record(now, 100)
		}
		if a.step(); waits != x.waits {
			t.Errorf("%d routes wait, busy is %t: %d pauses, want %d", x.routes, x.busy, waits, x.waits)
		}
	}
}
