package dataplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/model"
)

// world is an agent on a kernel in memory, stepped by the test on its own clock.
type world struct {
	t     *testing.T
	fake  *kerneltest.Kernel
	agent *HostAgent
	clock time.Time
}

const uplink, podLink = 2, 3

func newWorld(t *testing.T) *world {
	w := &world{t: t, fake: kerneltest.New(), clock: time.Unix(1e9, 0)}
	w.fake.PutLink(kernel.Link{Index: uplink, Name: "eth0", MTU: 1500, Up: true, Running: true})
	// so that indexes do not depend on the order of events
	w.fake.PutLink(kernel.Link{Index: podLink, Name: "later", MTU: 1500})
	w.fake.PutAddress(kernel.Address{Link: uplink, Prefix: netip.MustParsePrefix("10.1.0.5/24")})
	w.fake.PutRoute(kernel.Route{Dst: netip.MustParsePrefix("10.1.0.0/24"), Protocol: kernel.ProtocolKernel,
		Type:  kernel.Unicast,
		Scope: kernel.ScopeLink, NextHops: []kernel.NextHop{{Link: uplink}}})
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv4/conf/tunl0/rp_filter",
		"net/ipv6/conf/all/forwarding"} {
		w.fake.PutSysctl(name, "0")
	}
	w.agent = newHostAgent(Config{Kernel: w.fake, NodeName: "node-1", Logger: zap.NewNop(),
		MTUFile: filepath.Join(t.TempDir(), "mtu")},
		func() time.Time { return w.clock })
	w.agent.loop.Background = func(f func()) { f() }
	w.agent.loop.After = func(time.Duration) <-chan time.Time {
		now := make(chan time.Time, 1)
		now <- w.clock
		return now
	}
	return w
}

// watch connects the kernel's events to the agent.
func (w *world) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- w.fake.Watch(ctx, func(events []kernel.Event) {
			w.agent.put(func(b *batch) { b.addEvents(events) })
			select {
			case ready <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-ready:
	case <-done: // a failure was injected
	}
	w.t.Cleanup(cancel)
}

// run steps until nothing changes any more, with the clock leaping from one deadline to the next.
func (w *world) run() {
	idle := 0
	for range 2000 {
		before := w.fake.Calls("ApplyRoutes") + w.fake.Calls("SetSysctl") + w.fake.Calls("AddAddress") +
			w.fake.Calls("DeleteAddress")
		wait := w.agent.step()
		w.clock = w.clock.Add(max(wait, time.Millisecond))
		after := w.fake.Calls("ApplyRoutes") + w.fake.Calls("SetSysctl") + w.fake.Calls("AddAddress") +
			w.fake.Calls("DeleteAddress")
		if before == after && w.agent.inbox.empty() && w.agent.Status().Started && w.agent.Status().LastError == "" &&
			w.agent.Status().Failed == 0 {
			if idle++; idle > 3 {
				return
			}
		} else {
			idle = 0
		}
	}
	w.t.Fatal("the agent does not come to rest")
}

// text returns the state of the kernel that users see.
func (w *world) text() string {
	w.fake.Heal()
	routes, _ := w.fake.ListRoutes()
	addresses, _ := w.fake.ListAddresses()
	links, _ := w.fake.ListLinks()
	var lines []string
	for _, r := range routes {
		lines = append(lines, r.String())
	}
	for _, a := range addresses {
		lines = append(lines, fmt.Sprintf("address %s on #%d", a.Prefix, a.Link))
	}
	for _, l := range links {
		lines = append(lines, fmt.Sprintf("link %d %s mtu %d up %t", l.Index, l.Name, l.MTU, l.Up))
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv4/conf/tunl0/rp_filter",
		"net/ipv4/conf/cali1/proxy_arp"} {
		v, err := w.fake.Sysctl(name)
		lines = append(lines, fmt.Sprintf("%s=%s %v", name, v, err))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// cluster is node-1 with an IPIP pool and one without.
func cluster() model.Set {
	s := baseObjects()
	p := poolObject("ipip", "10.245.0.0/16", "CrossSubnet")
	s[p.Key] = p
	n := nodeObject("node-1", "10.1.0.5/24", "")
	n.Value.(*model.Node).Spec.BGP.IPv4IPIPTunnelAddr = "10.245.0.1"
	s[n.Key] = n
	return s
}

// events are the events of a node; the end must not depend on their order.
func (w *world) events() []func() {
	leftover := kernel.Route{Dst: netip.MustParsePrefix("10.244.77.0/26"), Metric: 1024, Protocol: kernel.ProtocolBIRD,
		Type: kernel.Unicast, NextHops: []kernel.NextHop{{Gateway: netip.MustParseAddr("10.1.0.9"), Link: uplink}}}
	return []func(){
		func() { w.agent.set(cluster()) },
		func() { w.watch() },
		func() { w.agent.synced(true, true) },
		func() { w.fake.PutRoute(leftover) },
		func() { w.fake.PutLink(kernel.Link{Index: podLink, Name: "cali1", MTU: 1500, Up: true, Running: true}) },
		func() { w.agent.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9", "10.1.0.8")}) },
		func() { w.agent.Learn([]locrib.Route{learned("10.244.3.0/26", 512, "10.1.0.9")}) },
		func() { w.agent.Learn([]locrib.Route{learned("10.245.3.0/26", 1024, "10.1.0.9")}) }, // same subnet
		func() { w.agent.Learn([]locrib.Route{learned("10.245.4.0/26", 1024, "10.2.0.9")}) }, // by the tunnel
		func() { w.agent.Learn([]locrib.Route{learned("10.244.1.0/26", 1024, "10.1.0.9")}) }, // own block: refused
	}
}

const final = `#2 is eth0, #3 is cali1, #4 is tunl0`

func wantText() string {
	lines := []string{
		"10.1.0.0/24 dev #2 proto kernel scope link",
		"10.244.1.7/32 dev #3 proto 80 scope link metric 1024",
		"10.244.2.0/26 nexthop via 10.1.0.9 dev #2 nexthop via 10.1.0.8 dev #2 proto bird metric 1024",
		"10.244.3.0/26 via 10.1.0.9 dev #2 proto bird metric 512",
		"10.245.3.0/26 via 10.1.0.9 dev #2 proto 80 metric 1024",
		"10.245.4.0/26 via 10.2.0.9 dev #4 onlink proto 80 metric 1024",
		"address 10.1.0.5/24 on #2",
		"address 10.245.0.1/32 on #4",
		"blackhole 10.244.1.0/26 proto bird",
		"blackhole fd10::1:0/122 proto bird metric 1024",
		"fd10::1:7/128 dev #3 proto 80 metric 1024",
		"link 1 lo mtu 65536 up true",
		"link 2 eth0 mtu 1500 up true",
		"link 3 cali1 mtu 1500 up true",
		"link 4 tunl0 mtu 1480 up true",
		"net/ipv4/conf/cali1/proxy_arp=1 <nil>",
		"net/ipv4/conf/tunl0/rp_filter=2 <nil>",
		"net/ipv4/ip_forward=1 <nil>",
	}
	return strings.Join(lines, "\n")
}

func (w *world) check(what string) {
	w.t.Helper()
	if got := w.text(); got != wantText() {
		w.t.Fatalf("%s: the kernel has (%s)\n%s\nwant\n%s", what, final, got, wantText())
	}
	for _, s := range w.agent.Routes() {
		if s.Phase != reconcile.Applied {
			w.t.Errorf("%s: %s is %s: %s", what, s.Prefix, s.Phase, s.Reason)
		}
	}
}

// Any order of the same events ends in the same kernel, with and without time between them.
func TestAnyOrderEndsTheSame(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		events := w.events()
		r.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		for _, e := range events {
			e()
			if r.IntN(2) == 0 {
				w.agent.step()
			}
		}
		w.run()
		w.check(fmt.Sprintf("seed %d", seed))
	}
}

// Each call to the kernel fails once, in turn, with each kind of failure. The end equals that of a run without
// failures.
func TestEveryCallMayFail(t *testing.T) {
	play := func(t *testing.T, before func(*kerneltest.Kernel)) *world {
		w := newWorld(t)
		before(w.fake)
		for _, e := range w.events() {
			e()
			w.agent.step()
			w.clock = w.clock.Add(50 * time.Millisecond)
		}
		// A watch that could not start is started again, as Run does.
		w.watch()
		w.run()
		return w
	}
	w := play(t, func(*kerneltest.Kernel) {})
	w.check("without failures")
	methods := []string{"ListRoutes", "ListLinks", "ListAddresses", "ApplyRoutes", "EnsureDevice", "SetMTU", "SetUp",
		"AddAddress", "DeleteAddress", "Sysctl", "SetSysctl", "Watch"}
	failures := []error{unix.ENOBUFS, unix.EINTR, unix.EEXIST, unix.EPERM, unix.ENETUNREACH}
	for _, method := range methods {
		calls := min(w.fake.Calls(method), 25)
		for nth := 1; nth <= calls; nth++ {
			for _, failure := range failures {
				name := fmt.Sprintf("%s %d %v", method, nth, failure)
				w := play(t, func(f *kerneltest.Kernel) { f.Fail(method, nth, failure) })
				w.check(name)
			}
		}
	}
}

// While everything fails, statuses have the reason; afterwards everything is reached.
func TestStatusSaysWhatFailed(t *testing.T) {
	w := newWorld(t)
	for nth := 1; nth <= 40; nth++ {
		w.fake.Fail("ApplyRoutes", nth, unix.EPERM)
	}
	for _, e := range w.events() {
		e()
	}
	w.agent.step()
	for _, s := range w.agent.Routes() {
		if s.Phase == reconcile.Failed && !strings.Contains(s.Reason, unix.EPERM.Error()) {
			t.Errorf("%s: %q", s.Prefix, s.Reason)
		}
	}
	if n := w.agent.Status().Failed; n == 0 {
		t.Error("no failed routes are reported")
	}
	w.run()
	w.check("afterwards")
}

// Without IPIP in the kernel, the routes that need it have that reason. All other routes work, also those in the pool's
// own subnet.
func TestNoIPIP(t *testing.T) {
	w := newWorld(t)
	core, logged := observer.New(zap.InfoLevel)
	w.agent.log = zap.New(core)
	w.fake.WithoutIPIP()
	for _, e := range w.events() {
		e()
	}
	for range 20 {
		w.clock = w.clock.Add(w.agent.step())
	}
	if n := logged.FilterMessageSnippet("the kernel is").Len(); n != 1 {
		t.Errorf("the problem is logged %d times, want once:\n%+v", n, logged.All())
	}
	const reason = "this kernel has no IPIP (CONFIG_NET_IPIP); pool ipip cannot be used on this node"
	phases := map[string]route.Status{}
	for _, s := range w.agent.Routes() {
		phases[s.Prefix.String()] = s
	}
	if s := phases["10.245.4.0/26"]; s.Phase != reconcile.Blocked || s.Reason != reason {
		t.Errorf("%s %q", s.Phase, s.Reason)
	}
	for _, prefix := range []string{"10.245.3.0/26", "10.244.2.0/26", "10.244.1.7/32", "10.244.1.0/26"} {
		if s := phases[prefix]; s.Phase != reconcile.Applied {
			t.Errorf("%s: %s %q", prefix, s.Phase, s.Reason)
		}
	}
	objects := w.agent.Objects("device")
	if len(objects) == 0 || objects[0].Key != "device tunl0" || objects[0].Phase != reconcile.Failed ||
		!strings.Contains(objects[0].Reason, kernel.ErrNoIPIP.Error()) {
		t.Errorf("%+v", objects)
	}
}

// A kernel that cannot be listed leaves everything as it is, and the failure is reported.
func TestNothingIsProgrammedBlindly(t *testing.T) {
	w := newWorld(t)
	broken := errors.New("broken")
	for nth := 1; nth <= 5; nth++ {
		w.fake.Fail("ListRoutes", nth, broken)
	}
	for _, e := range w.events() {
		e()
	}
	w.agent.step()
	if n := w.fake.Calls("ApplyRoutes"); n != 0 {
		t.Errorf("%d routes were changed without knowing what is there", n)
	}
	if s := w.agent.Status(); s.Started || s.LastError != broken.Error() {
		t.Errorf("%+v", s)
	}
	w.run()
	w.check("afterwards")
}

// The reason for a user who switches IPIP off is the switch, not the missing device.
func TestIPIPDisabledByConfiguration(t *testing.T) {
	w := newWorld(t)
	off := false
	s := cluster()
	k := model.ResourceKey(model.KindFelixConfiguration, "default")
	f := &model.FelixConfiguration{}
	f.Spec.IPIPEnabled = &off
	s[k] = object(k, f)
	w.agent.set(s)
	w.agent.Learn([]locrib.Route{learned("10.245.4.0/26", 1024, "10.1.1.9")})
	w.agent.step()
	const want = "IPIP is switched off (FelixConfiguration, ipipEnabled: false); pool ipip cannot be used on this node"
	for _, s := range w.agent.Routes() {
		if s.Prefix.String() == "10.245.4.0/26" && s.Reason != want {
			t.Errorf("%q, want %q", s.Reason, want)
		}
	}
	if w.fake.Calls("EnsureDevice") != 0 {
		t.Error("the device is made all the same")
	}
}
