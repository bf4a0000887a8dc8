package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// A kernel that does not count, and loses answers, still gets its table.
func TestCountersThatMayBeMissing(t *testing.T) {
	for _, c := range []struct {
		lost   int // answers
		counts bool
		off    bool
	}{{0, true, false}, {checks - 1, true, false}, {checks - 1, false, true}, {checks, true, true}, {0, false, true}} {
		rules := kerneltest.NewRules()
		lost := c.lost
		rules.Refuse(func(ch ruleset.Changes) error {
			if ch.Chains[0].New.Rules[0].CountedBy == "" {
				return nil
			}
			if lost--; lost >= 0 {
				return fmt.Errorf("check: %w", nftables.ErrUncertain)
			}
			if !c.counts {
				return unix.EOPNOTSUPP
			}
			return nil
		})
		config := Config{Rules: rules, Logger: zap.NewNop()}
		missing := config.withoutExtras()
		if config.Policy.NoNamedCounters != c.off || (len(missing) > 0) != c.off {
			t.Errorf("%+v: counters are off: %v, missing is %q", c, config.Policy.NoNamedCounters, missing)
		}
	}
}

func newTarget(rules nftables.Rules, l kernel.Links, programmed func(int)) *Target {
	return New(Config{Rules: rules, Links: l, Policy: policy.Config{Node: "here"}, Loop: reconcile.NewLoop(),
		Logger: zap.NewNop(), Programmed: programmed})
}

func state() *hoststate.Host {
	h := hoststate.New("here", nil)
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
	if target.Flush(); l.calls != calls || target.Next() == linksRetry {
		t.Errorf("without host endpoints an address has the interfaces listed %d times, again in %v", l.calls-calls,
			target.Next())
	}
	target.RefreshLinks()
	if target.RefreshLinks(); l.calls != calls+1 {
		t.Errorf("refreshed after one address: listed %d times", l.calls-calls)
	}
}

// A host endpoint is never matched with interfaces of before an event, and from then on each event has them listed.
func TestHostEndpointsNeedTheInterfaces(t *testing.T) {
	rules, l := kerneltest.NewRules(), &links{Kernel: kerneltest.New()}
	l.PutLink(kernel.Link{Index: 2, Name: "eth0", Up: true, Running: true})
	target, h := newTarget(rules, l, nil), state()
	target.SetState(h)
	target.Flush()
	address := func(last byte) {
		l.PutAddress(kernel.Address{Link: 2, Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, last}), 24)})
		target.Handle([]kernel.Event{{Type: kernel.EventAddress}})
	}
	protected := func() bool {
		target.Flush()
		actual, err := rules.ReadRules()
		if err != nil {
			t.Fatal(err)
		}
		return actual != nil && actual.Maps["host-in"]["eth0"] != ruleset.Verdict{}
	}
	address(1)
	if protected() {
		t.Error("protected without a host endpoint")
	}
	e := &v3.HostEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: v3.HostEndpointSpec{Node: "here",
		ExpectedIPs: []string{"192.0.2.1", "192.0.2.2"}}}
	key := model.ResourceKey(model.KindHostEndpoint, "h")
	h.Take(hoststate.State{Reader: model.NewSet(model.NewObject(key, e)), Changed: []model.Key{key}})
	if target.SetState(h); !protected() {
		t.Error("a new host endpoint does not match an address that came before it")
	}
	if err := l.DeleteAddress(kernel.Address{Link: 2, Prefix: netip.MustParsePrefix("192.0.2.1/24")}); err != nil {
		t.Fatal(err)
	}
	target.Handle([]kernel.Event{{Type: kernel.EventAddressGone}})
	if protected() {
		t.Error("a host endpoint matches an address that is gone")
	}
	if address(2); !protected() {
		t.Error("a host endpoint does not match a new address")
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

// A state is reached when the kernel has its rules: not while an earlier failure delays the next attempt.
func TestDelayedStatesAreNotReached(t *testing.T) {
	rules, reports := kerneltest.NewRules(), 0
	target, h := newTarget(rules, nil, func(int) { reports++ }), state()
	target.SetState(h)
	target.Flush()
	rules.Refuse(func(ruleset.Changes) error { return unix.EPERM })
	key := model.ResourceKey(model.KindIPPool, "p")
	for i := range 3 {
		p := &model.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: model.IPPoolSpec{CIDR: fmt.Sprintf("10.%d.0.0/16", i), NATOutgoing: true}}
		h.Take(hoststate.State{Reader: model.NewSet(model.NewObject(key, p)), Changed: []model.Key{key}})
		target.SetState(h)
		_, _, err := target.Flush()
		if reached := target.Reached().Get(key) != nil; !errors.Is(err, unix.EPERM) || reached || reports != 1 {
			t.Errorf("state %d: %v, reached %t, %d reports", i, err, reached, reports)
		}
	}
	rules.Refuse(nil)
	target.Retry()
	if _, _, err := target.Flush(); err != nil || target.Reached().Get(key) == nil || reports != 2 {
		t.Errorf("in the end: %v, %d reports", err, reports)
	}
}

// The IPIP device takes packets while it is up, also when IPIP is no longer in use, or was in use before a restart.
func TestTheTunnelIsGuardedWhileItIsUp(t *testing.T) {
	rules, l := kerneltest.NewRules(), &links{Kernel: kerneltest.New()}
	target, h := newTarget(rules, l, nil), state()
	here, stranger := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.3")
	host := &ruleset.Host{IsLocal: func(a netip.Addr) bool { return a == here }}
	p := ruleset.Packet{In: "eth0", Source: stranger, Destination: here, Protocol: 4, State: ruleset.ConnNew}
	guarded := func(what string, target *Target, want bool) {
		t.Helper()
		if _, _, err := target.Flush(); err != nil {
			t.Fatal(err)
		}
		if got := !target.Calculator().Table().EvalInput(host, p, nil).Accepted(); got != want {
			t.Errorf("%s: guarded %t, want %t", what, got, want)
		}
	}
	pool := func(mode v3.IPIPMode) {
		o := model.NewObject(model.ResourceKey(model.KindIPPool, "p"),
			&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16", IPIPMode: mode}})
		h.Take(hoststate.State{Reader: model.NewSet(o), Changed: []model.Key{o.Key}})
		target.SetState(h)
	}
	device := func(up bool) {
		tunnel := kernel.Link{Index: 7, Name: "tunl0", Kind: "ipip", Up: up}
		l.PutLink(tunnel)
		target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: tunnel}})
	}
	target.SetState(h)
	guarded("without a tunnel", target, false)
	pool(v3.IPIPModeAlways)
	guarded("IPIP in use", target, true)
	device(true)
	guarded("with its device", target, true)
	pool(v3.IPIPModeNever)
	guarded("IPIP out of use", target, true)
	again := newTarget(kerneltest.NewRules(), l, nil)
	again.SetState(state())
	guarded("after a restart", again, true)
	device(false)
	guarded("the device is down", target, false)
	device(true)
	guarded("another program set it up", target, true)
	l.DropLink(7)
	target.Handle([]kernel.Event{{Type: kernel.EventResync}})
	guarded("it went while events were lost", target, false)
}

// A VXLAN device with another network than the settings is guarded until it is made again.
func TestADeviceIsGuardedAsItIs(t *testing.T) {
	rules, l := kerneltest.NewRules(), &links{Kernel: kerneltest.New()}
	target, h := newTarget(rules, l, nil), state()
	o := model.NewObject(model.ResourceKey(model.KindIPPool, "p"),
		&model.IPPool{Spec: model.IPPoolSpec{CIDR: "10.0.0.0/16", VXLANMode: v3.VXLANModeAlways}})
	h.Take(hoststate.State{Reader: model.NewSet(o), Changed: []model.Key{o.Key}})
	target.SetState(h)
	if _, _, err := target.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, vni := range []uint32{5, 6} {
		tunnel := kernel.Link{Index: 7, Name: "vxlan.calico", Kind: "vxlan", Up: true,
			VXLAN: kernel.VXLAN{VNI: vni, Port: 9999}}
		l.PutLink(tunnel)
		target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: tunnel}})
		if _, _, err := target.Flush(); err != nil {
			t.Fatal(err)
		}
		for _, x := range []struct {
			port    uint16
			vni     uint32
			guarded bool
		}{{9999, vni, true}, {4789, 4096, true}, {9999, 7, false}, {4789, vni, false}} {
			p := ruleset.Packet{In: "eth0", Source: netip.MustParseAddr("192.0.2.3"), Protocol: 17,
				Destination: netip.MustParseAddr("192.0.2.1"), DestinationPort: x.port, VXLAN: true, VNI: x.vni}
			if got := !target.Calculator().Table().EvalInput(nil, p, nil).Accepted(); got != x.guarded {
				t.Errorf("device with VNI %d: %+v: guarded %t", vni, x, got)
			}
		}
	}
}

// connections cannot be changed a few times.
type connections struct {
	failures  int
	forgotten []netip.Addr
}

func (c *connections) ForgetConnections(list []netip.Addr) (int, error) {
	if c.failures > 0 {
		c.failures--
		return 0, unix.ENOBUFS
	}
	c.forgotten = append(c.forgotten, list...)
	return len(list), nil
}

// Connections of floating addresses that moved on are forgotten at the first attempt that succeeds. Until then the
// reason is reported, and attempts wait longer each time, unless another address moves or a person asks for one.
func TestForgettingIsRetried(t *testing.T) {
	now, conns := time.Unix(1000, 0), &connections{failures: 4}
	target := newTarget(kerneltest.NewRules(), nil, nil)
	target.translated.Connections, target.translated.Now = conns, func() time.Time { return now }
	target.translated.Loop.Background = func(f func()) { f() }
	felix := &model.FelixConfiguration{}
	on := v3.FloatingIPsEnabled
	felix.Spec.FloatingIPs = &on
	pool := &model.IPPool{Spec: model.IPPoolSpec{CIDR: "203.0.113.0/24", Disabled: true}}
	pool.Annotations = map[string]string{"manx.io/floating": "true"}
	h := hoststate.New("here", nil)
	has := func(external ...string) {
		w := &model.WorkloadEndpoint{Spec: model.WorkloadEndpointSpec{Node: "here", InterfaceName: "cali1",
			IPNetworks: []string{"10.0.0.1/32"}}}
		for _, e := range external {
			w.Spec.IPNATs = append(w.Spec.IPNATs, model.IPNAT{InternalIP: "10.0.0.1", ExternalIP: e})
		}
		h.Take(hoststate.State{All: true, Reader: model.NewSet(
			model.NewObject(model.ResourceKey(model.KindFelixConfiguration, "default"), felix),
			model.NewObject(model.ResourceKey(model.KindIPPool, "floating"), pool),
			model.NewObject(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: "w"}, w))})
		target.SetState(h)
	}
	has("203.0.113.1", "203.0.113.2")
	target.Flush()
	for _, step := range []struct {
		name  string
		do    func()
		left  int // failures to come
		pause time.Duration
	}{
		{"the first failure", func() { has("203.0.113.2") }, 3, 100 * time.Millisecond},
		{"too early", func() { now = now.Add(99 * time.Millisecond) }, 3, time.Millisecond},
		{"the second failure", func() { now = now.Add(time.Millisecond) }, 2, 200 * time.Millisecond},
		{"another address moves", func() { has() }, 1, 400 * time.Millisecond},
		{"a person retries", target.Retry, 0, 800 * time.Millisecond},
	} {
		step.do()
		if _, _, err := target.Flush(); err != nil {
			t.Fatal(err)
		}
		if h := target.Health(); conns.failures != step.left || target.Next() != step.pause || h.Failures != 1 ||
			!errors.Is(h.Problem, unix.ENOBUFS) || !strings.Contains(target.Outdated(), "203.0.113.1") {
			t.Errorf("%s: %d failures to come, again in %v, %+v, %q", step.name, conns.failures, target.Next(), h,
				target.Outdated())
		}
	}
	now = now.Add(time.Second)
	for range 2 {
		target.Flush()
		if len(conns.forgotten) != 2 || target.Health().Failures != 0 || target.Outdated() != "" {
			t.Errorf("%v are forgotten, %+v", conns.forgotten, target.Health())
		}
	}
}
