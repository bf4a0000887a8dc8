package dataplane

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/model"
)

const defaultRoute = "default via 10.1.0.1 dev eth0"

// simple is a node with one learned route, one block and one workload.
func (h *host) simple() (a *HostAgent, stop func(), want []string) {
	h.t.Helper()
	h.pod("cali1")
	a, stop = h.agent()
	a.set(baseObjects())
	a.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9")})
	want = []string{
		defaultRoute,
		"10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
	}
	h.eventually("-4", want...)
	return a, stop, want
}

// Any change of our routes by another program is undone without waiting for a timer.
func TestDriftIsRepaired(t *testing.T) {
	h := newHost(t)
	_, _, want := h.simple()
	for _, harm := range [][]string{
		{"route del 10.244.2.0/26"},
		{"route del blackhole 10.244.1.0/26"},
		{"route del 10.244.1.7/32"},
		{"route replace 10.244.2.0/26 via 10.1.0.77 proto bird metric 1024"},
		{"route replace blackhole 10.244.2.0/26 proto bird metric 1024"},
		{"route flush proto bird", "route flush proto 80"},
		{"link set eth0 down", "link set eth0 up", "route add default via 10.1.0.1"},
		{"link set cali1 down", "link set cali1 up"},
		{"-6 route flush proto bird"},
	} {
		for _, command := range harm {
			h.ip(command)
		}
		h.eventually("-4", want...)
	}
	h.eventually("-6",
		"fd10::1:7 dev cali1 proto 80 metric 1024 pref medium", "blackhole fd10::1:0/122 dev lo proto bird metric "+
			"1024 pref medium")
}

// IPv6 keeps the next hops of a route as siblings, which other programs can remove or add one by one.
func TestDriftOfIPv6SiblingsIsRepaired(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	a, _ := h.agent()
	a.set(baseObjects())
	a.Learn([]locrib.Route{learned("fd10::4:0/122", 1024, "fd01::9", "fd01::10")})
	want := []string{
		"fd10::1:7 dev cali1 proto 80 metric 1024 pref medium", "blackhole fd10::1:0/122 dev lo proto bird metric " +
			"1024 pref medium",
		"fd10::4:0/122 proto bird metric 1024 pref medium", "nexthop via fd01::9 dev eth0 weight 1",
		"nexthop via fd01::10 dev eth0 weight 1",
	}
	h.eventually("-6", want...)
	for _, harm := range []string{
		"-6 route del fd10::4:0/122 via fd01::9 dev eth0",
		"-6 route append fd10::4:0/122 via fd01::66 dev eth0 proto static metric 1024",
		"-6 route del fd10::4:0/122",
		"-6 route replace fd10::4:0/122 via fd01::66 dev eth0 proto bird metric 1024",
	} {
		h.ip(harm)
		h.eventually("-6", want...)
	}
}

// A route of another owner with our prefix and metric stays. Our route replaces it after its removal.
func TestForeignRouteKeepsItsPlace(t *testing.T) {
	h := newHost(t)
	h.ip("route add 10.244.2.0/26 via 10.1.0.44 proto static metric 1024")
	h.ip("route add 10.244.7.0/26 via 10.1.0.44 proto 80") // in the pool: Felix'
	h.ip("route add 10.99.0.0/26 via 10.1.0.44 proto 80")  // not
	h.ip("-6 route add fd10::2:0/122 via fd01::44 proto static metric 1024")
	h.pod("cali1")
	a, _ := h.agent()
	a.set(baseObjects())
	a.synced(true, true)
	a.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9"), learned("fd10::2:0/122", 1024, "fd01::9")})
	common := []string{
		defaultRoute, "10.99.0.0/26 via 10.1.0.44 dev eth0 proto 80",
		"10.244.1.7 dev cali1 proto 80 scope link metric 1024", "blackhole 10.244.1.0/26 proto bird",
	}
	h.eventually("-4", append([]string{"10.244.2.0/26 via 10.1.0.44 dev eth0 proto static metric 1024"}, common...)...)
	settle(t, a)
	for _, s := range a.Routes() {
		if s.Prefix.String() == "10.244.2.0/26" && (s.Phase != reconcile.Failed || s.Reason == "") {
			t.Errorf("%+v", s)
		}
	}
	h.ip("route del 10.244.2.0/26")
	h.ip("-6 route del fd10::2:0/122")
	h.eventually("-4", append([]string{"10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024"}, common...)...)
	h.eventually("-6", "fd10::1:7 dev cali1 proto 80 metric 1024 pref medium",
		"blackhole fd10::1:0/122 dev lo proto bird metric 1024 pref medium",
		"fd10::2:0/122 via fd01::9 dev eth0 proto bird metric 1024 pref medium")
}

// Routes of BIRD and Felix are taken over in place; undesired ones are removed only when everything is in sync.
func TestAdoptThenPrune(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	h.ip("route add 10.244.2.0/26 via 10.1.0.9 proto bird metric 1024")   // as wanted
	h.ip("route add 10.244.3.0/26 via 10.1.0.66 proto bird metric 1024")  // another gateway
	h.ip("route add 10.244.4.0/26 via 10.1.0.9 proto bird")               // of an older release: without a metric
	h.ip("route add 10.244.5.0/26 via 10.1.0.9 proto bird metric 1024")   // undesired
	h.ip("route add blackhole 10.244.1.0/26 proto 80")                    // Felix' for the own block
	h.ip("route add 10.244.1.7/32 dev cali1 scope link")                  // the CNI plugin's
	h.ip("route add 10.244.1.8/32 dev cali1 scope link proto 80")         // of a deleted workload
	h.ip("-6 route add fd10::5:0/122 via fd01::9 proto bird metric 1024") // undesired
	before := h.main("-4")
	a, _ := h.agent()
	// Without a state nothing changes, not even if both are in sync.
	a.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9")})
	a.synced(true, true)
	a.synced(false, false)
	waitFor(t, "the inbox to be read", func() bool { return a.inbox.empty() })
	h.eventually("-4", before...)

	a.set(baseObjects())
	a.Learn([]locrib.Route{learned("10.244.3.0/26", 1024, "10.1.0.9"), learned("10.244.4.0/26", 1024, "10.1.0.9")})
	kept := []string{
		defaultRoute,
		"10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
		"10.244.3.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
		"10.244.4.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
	}
	h.eventually("-4", append([]string{
		"10.244.1.7 dev cali1 scope link",
		"10.244.1.8 dev cali1 proto 80 scope link",
		"10.244.4.0/26 via 10.1.0.9 dev eth0 proto bird",
		"10.244.5.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
	}, kept...)...)
	a.synced(true, false)
	settle(t, a)
	found := false
	for _, s := range a.Routes() {
		found = found || s.Prefix.String() == "10.244.5.0/26" && s.Phase == reconcile.Leftover && len(s.Actual) == 1
	}
	if !found {
		t.Error("the leftover is not in the table")
	}
	a.synced(true, true)
	h.eventually("-4", kept...)
	h.eventually("-6", "fd10::1:7 dev cali1 proto 80 metric 1024 pref medium",
		"blackhole fd10::1:0/122 dev lo proto bird metric 1024 pref medium")
}

// Changes after the start: new metric, withdrawal, a released block, added and removed workloads.
func TestChanges(t *testing.T) {
	h := newHost(t)
	a, _, _ := h.simple()
	a.synced(true, true)
	pod := "10.244.1.7 dev cali1 proto 80 scope link metric 1024"
	block := "blackhole 10.244.1.0/26 proto bird"
	a.Learn([]locrib.Route{learned("10.244.2.0/26", 512, "10.1.0.9")})
	h.eventually("-4", defaultRoute, pod, block, "10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 512")
	a.Learn([]locrib.Route{learned("10.244.2.0/26", 0)})
	h.eventually("-4", defaultRoute, pod, block)
	// A workload whose interface appears later than its endpoint.
	late := endpointObject("late", "node-1", "cali9", "10.244.1.20/32")
	next := baseObjects()
	next[late.Key] = late
	a.set(next, late.Key)
	settle(t, a)
	h.pod("cali9")
	latePod := "10.244.1.20 dev cali9 proto 80 scope link metric 1024"
	h.eventually("-4", defaultRoute, pod, block, latePod)
	// Interface deleted and created again, with another index.
	h.ip("link del cali1")
	h.eventually("-4", defaultRoute, block, latePod)
	h.pod("cali1")
	h.eventually("-4", defaultRoute, pod, block, latePod)
	// The block moves to another node.
	gone := blockObject("10.244.1.0/26", model.StateConfirmed).Key
	delete(next, gone)
	delete(next, late.Key)
	a.set(next, gone, late.Key)
	a.Learn([]locrib.Route{learned("10.244.1.0/26", 1024, "10.1.0.9")})
	h.eventually("-4", defaultRoute, pod, "10.244.1.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024")
}

const helperEnv = "MANX_TEST_AGENT_NETNS"

// The other half of TestKilledAgentLeavesEverything: an agent that runs until it is killed.
func TestHelperAgent(t *testing.T) {
	name := os.Getenv(helperEnv)
	if name == "" {
		t.Skip("only as a child of TestKilledAgentLeavesEverything")
	}
	h := &host{t, name}
	a, _ := h.agent()
	a.set(baseObjects())
	a.synced(true, true)
	a.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9")})
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
}

func TestKilledAgentLeavesEverything(t *testing.T) {
	h := newHost(t)
	h.pod("cali1")
	child := exec.Command(os.Args[0], "-test.run=^TestHelperAgent$")
	child.Env = append(os.Environ(), helperEnv+"="+h.name)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	want := []string{
		defaultRoute,
		"10.244.1.7 dev cali1 proto 80 scope link metric 1024",
		"blackhole 10.244.1.0/26 proto bird",
		"10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024",
	}
	h.eventually("-4", want...)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	h.eventually("-4", want...)
	// The next one changes nothing: the kernel reports not a single route event.
	c := h.open()
	events := countRouteEvents(t, c)
	a, _ := h.agent()
	a.set(baseObjects())
	a.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9")})
	settle(t, a)
	a.synced(true, true)
	settle(t, a)
	h.eventually("-4", want...)
	if n := events(); n != 0 {
		t.Errorf("%d route changes after a restart with the same state", n)
	}
}

// The CNI plugin's route exists before the datastore has the workload. It is taken over in one step. A plugin that is
// faster than its event does not cause a read of the whole table.
func TestRouteOfTheCNIPluginIsTakenOver(t *testing.T) {
	h := newHost(t)
	_, stop, want := h.simple()
	stop()
	k := &listCounter{Kernel: KernelOf(h.open())}
	b := New(Config{Kernel: k, NodeName: "node-1", Logger: zap.NewNop()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	defer func() { cancel(); <-done }()
	b.set(baseObjects())
	b.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9")})
	settle(t, b)
	before := k.lists.Load()
	h.pod("cali3")
	h.ip("route add 10.244.1.3/32 dev cali3 scope link metric 1024")
	next := baseObjects()
	e := endpointObject("new", "node-1", "cali3", "10.244.1.3/32")
	next[e.Key] = e
	b.set(next, e.Key)
	h.eventually("-4", append([]string{"10.244.1.3 dev cali3 proto 80 scope link metric 1024"}, want...)...)
	if n := k.lists.Load() - before; n != 0 {
		t.Errorf("the whole table was read %d times", n)
	}
}

type listCounter struct {
	Kernel
	lists atomic.Int64
}

func (k *listCounter) ListRoutes(tables ...kernel.Table) ([]kernel.Route, error) {
	k.lists.Add(1)
	return k.Kernel.ListRoutes(tables...)
}
