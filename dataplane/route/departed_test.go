package route

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
)

// move simulates how the address 10.244.1.8 of cali2 moves to another workload.
type move struct {
	t      *testing.T
	fake   *kerneltest.Kernel
	target *Target
	config Config
}

const moving = "10.244.1.8/32"

func newMove(t *testing.T) *move {
	m := &move{t: t, fake: testKernel(), config: testConfig()}
	m.fake.PutLink(kernel.Link{Index: 7, Name: "cali2", Up: true, Running: true})
	m.target, _ = testTarget(m.fake)
	m.target.Synced(true)
	m.flush("start")
	m.fake.Log()
	return m
}

// owner assigns the address to an interface; empty: to none.
func (m *move) owner(name string) {
	m.config.Endpoints = slices.DeleteFunc(slices.Clone(m.config.Endpoints),
		func(e Endpoint) bool { return e.Addresses[0] == prefix(moving) })
	if name != "" {
		m.config.Endpoints = append(m.config.Endpoints, Endpoint{Name: "default/of-" + name, Interface: name,
			Addresses: prefixes(moving)})
	}
	m.target.Configure(m.config)
}

// flush flushes and checks the changes in the kernel.
func (m *move) flush(what string, want ...string) {
	m.t.Helper()
	_, failures, err := m.target.Flush()
	if failures != 0 || err != nil {
		m.t.Fatalf("%s: %d failures, %v", what, failures, err)
	}
	if what == "start" {
		return
	}
	if got := m.fake.Log(); !slices.Equal(got, want) {
		m.t.Fatalf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func (m *move) checkDeparted(what string, want ...string) {
	m.t.Helper()
	var got []string
	for _, a := range m.target.departed() {
		got = append(got, a.String()+"/32")
	}
	if !slices.Equal(got, want) {
		m.t.Fatalf("%s: connections of %q are to be forgotten, want %q", what, got, want)
	}
}

func (m *move) confirmDeparted() {
	m.target.forgotten([]netip.Addr{netip.MustParsePrefix(moving).Addr()})
}

const (
	toCali1   = "10.244.1.8/32 dev #5 proto 80 scope link metric 1024"
	toCali2   = "10.244.1.8/32 dev #7 proto 80 scope link metric 1024"
	byAnother = "10.244.1.8/32 via 10.1.0.9 dev #2 proto bird metric 512"
)

func TestAddressOfAWorkloadChangesHands(t *testing.T) {
	for _, c := range []struct {
		rule string
		play func(*move)
	}{
		{"to another interface: the old route, the connections, then the new route", func(m *move) {
			m.owner("cali1")
			m.flush("moved", "delete "+toCali2)
			if s := rowOf(m.target, moving); s.Reason != (&departure{}).note() {
				m.t.Errorf("%+v", s)
			}
			m.checkDeparted("moved", moving)
			m.checkDeparted("once")
			m.flush("nothing before the connections are forgotten")
			m.confirmDeparted()
			m.flush("then", "add "+toCali1)
			m.checkDeparted("settled")
		}},
		{"to nobody, and later to another", func(m *move) {
			m.owner("")
			m.flush("gone", "delete "+toCali2)
			m.checkDeparted("gone", moving)
			m.owner("cali1")
			m.flush("not yet")
			m.confirmDeparted()
			m.flush("then", "add "+toCali1)
			m.checkDeparted("new")
		}},
		{"to another node", func(m *move) {
			m.target.Learn([]locrib.Route{learned(moving, 512, "10.1.0.9")})
			m.flush("the local workload counts")
			m.owner("")
			m.flush("gone", "delete "+toCali2)
			m.checkDeparted("gone", moving)
			m.confirmDeparted()
			m.flush("then", "add "+byAnother)
		}},
		{"from one node to another: nothing of ours", func(m *move) {
			m.owner("")
			m.flush("gone", "delete "+toCali2)
			m.checkDeparted("gone", moving)
			m.confirmDeparted()
			m.target.Learn([]locrib.Route{learned(moving, 512, "10.1.0.9")})
			m.flush("learned", "add "+byAnother)
			m.target.Learn([]locrib.Route{learned(moving, 512, "10.3.0.9")})
			m.flush("moved", "replace "+strings.Replace(byAnother, "10.1.0.9 dev #2", "10.3.0.9 dev #3", 1))
			m.checkDeparted("moved")
			m.owner("cali1")
			m.flush("here, as a new address", "add "+toCali1, "delete "+strings.Replace(byAnother, "10.1.0.9 dev #2",
				"10.3.0.9 dev #3", 1))
			m.checkDeparted("here")
		}},
		{"several times meanwhile", func(m *move) {
			m.owner("cali1")
			m.flush("away", "delete "+toCali2)
			m.checkDeparted("away", moving)
			m.owner("")
			m.flush("gone")
			m.owner("cali2")
			m.flush("back")
			m.checkDeparted("once")
			m.confirmDeparted()
			m.flush("then", "add "+toCali2)
		}},
		{"the interface goes down and up: the same workload", func(m *move) {
			m.link(7, "cali2", false)
			m.flush("down")
			m.checkDeparted("down")
			m.link(7, "cali2", true)
			m.flush("up", "add "+toCali2)
			m.checkDeparted("up")
		}},
		{"the interface goes, then the workload", func(m *move) {
			m.fake.DropLink(7)
			m.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: kernel.Link{Index: 7, Name: "cali2"}}})
			m.flush("without interface")
			m.checkDeparted("without interface")
			m.owner("")
			m.flush("without workload")
			m.checkDeparted("without workload", moving)
		}},
		{"another interface of the same name is another workload", func(m *move) {
			m.fake.DropLink(7)
			m.target.Handle([]kernel.Event{{Type: kernel.EventLinkGone, Link: kernel.Link{Index: 7, Name: "cali2"}}})
			m.link(15, "cali2", true)
			m.flush("new interface")
			m.checkDeparted("new interface", moving)
			m.confirmDeparted()
			m.flush("then", "add "+strings.Replace(toCali2, "#7", "#15", 1))
		}},
		{"another metric is no other workload", func(m *move) {
			m.config.WorkloadMetric4 = 99
			m.target.Configure(m.config)
			_, _, _ = m.target.Flush()
			m.checkDeparted("99")
		}},
		{"a route that cannot be removed comes before the connections", func(m *move) {
			m.fake.Fail("ApplyRoutes", m.fake.Calls("ApplyRoutes")+1, unix.EPERM)
			m.owner("cali1")
			if _, failures, _ := m.target.Flush(); failures != 1 {
				m.t.Fatal(failures)
			}
			m.checkDeparted("it is still there")
			m.target.now = func() time.Time { return time.Unix(2e9, 0) }
			m.target.table.Retry(kernel.RouteKey{Dst: netip.MustParsePrefix(moving), Metric: 1024})
			_, _, _ = m.target.Flush()
			m.checkDeparted("now it is gone", moving)
		}},
	} {
		t.Run(c.rule, func(t *testing.T) { c.play(newMove(t)) })
	}
}

func (m *move) link(index int, name string, up bool) {
	l := kernel.Link{Index: index, Name: name, Up: up, Running: up}
	m.fake.PutLink(l)
	m.target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: l}})
}

// Objects of an earlier run are known only by their routes.
func TestAddressChangedHandsBetweenTwoRuns(t *testing.T) {
	for _, c := range []struct {
		rule   string
		synced bool
		owner  string
		want   []string
	}{
		{"another interface has it now", false, "cali1", []string{"delete " + toCali2, "forget", "add " + toCali1}},
		{"the same interface has it", false, "cali2", nil},
		{"nobody has it, as far as is known", false, "", nil},
		{"nobody has it", true, "", []string{"delete " + toCali2, "forget"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			m := &move{t: t, fake: testKernel(), config: Config{WorkloadPrefixes: []string{"cali"}}}
			m.fake.PutRoute(kernel.Route{Dst: prefix(moving), Metric: 1024, Protocol: kernel.ProtocolCalico,
				Type:  kernel.Unicast,
				Scope: kernel.ScopeLink, NextHops: []kernel.NextHop{{Link: 7}}})
			m.target = New(m.fake, func() time.Time { return time.Unix(1e9, 0) })
			m.owner(c.owner)
			m.target.Synced(c.synced)
			var log []string
			for range 3 {
				_, _, _ = m.target.Flush()
				log = append(log, m.fake.Log()...)
				if list := m.target.departed(); len(list) > 0 {
					log = append(log, "forget")
					m.target.forgotten(list)
				}
			}
			if !slices.Equal(log, c.want) {
				t.Errorf("%q, want %q", log, c.want)
			}
		})
	}
}

// An address that comes to a workload waits for the connections of whoever had it before. One that the kernel routes to
// the workload's interface already does not, whichever program made the route.
func TestAddressArrivesAtAWorkload(t *testing.T) {
	at := func(metric uint32, protocol kernel.Protocol, link int) *kernel.Route {
		return &kernel.Route{Dst: prefix(moving), Metric: metric, Protocol: protocol, Type: kernel.Unicast,
			Scope: kernel.ScopeLink, NextHops: []kernel.NextHop{{Link: link}}}
	}
	for _, c := range []struct {
		rule  string
		route *kernel.Route
		waits bool
	}{
		{"no route", nil, true},
		{"of an earlier run", at(1024, kernel.ProtocolCalico, 7), false},
		{"of calico/node", at(0, kernel.ProtocolCalico, 7), false},
		{"of the CNI plugin", at(1024, kernel.ProtocolBoot, 7), false},
		{"of an administrator", at(50, 4, 7), false},
		{"to another node", &kernel.Route{Dst: prefix(moving), Metric: 512, Protocol: kernel.ProtocolBIRD,
			Type:     kernel.Unicast,
			NextHops: []kernel.NextHop{{Link: 2, Gateway: netip.MustParseAddr("10.1.0.9")}}}, true},
		{"to another workload, with another metric", at(0, kernel.ProtocolCalico, 5), true},
	} {
		t.Run(c.rule, func(t *testing.T) {
			m := &move{t: t, fake: testKernel(), config: Config{WorkloadPrefixes: []string{"cali"}}}
			m.fake.PutLink(kernel.Link{Index: 7, Name: "cali2", Up: true, Running: true})
			if c.route != nil {
				m.fake.PutRoute(*c.route)
			}
			m.target = New(m.fake, func() time.Time { return time.Unix(1e9, 0) })
			loop := reconcile.NewLoop()
			var background func()
			loop.Background = func(f func()) { f() }
			m.fake.PutConnections(netip.MustParseAddr("10.244.1.8"))
			m.target.ForgetConnections(m.fake, loop, zap.NewNop())
			m.target.forgetter.readConnected()
			loop.Background = func(f func()) { background = f }
			m.owner("cali2")
			served := func() bool {
				_, _, _ = m.target.Flush()
				return slices.ContainsFunc(m.fake.Log(), func(s string) bool { return s == "add "+toCali2 })
			}
			if c.waits {
				if served() || background == nil {
					t.Fatalf("there is a route before the connections are forgotten: %+v", rowOf(m.target, moving))
				}
				if s := rowOf(m.target, moving); s.Reason != (&departure{arrived: true}).note() {
					t.Errorf("%+v", s)
				}
				background()
				if log := m.fake.Log(); !slices.Contains(log, "forget connections of 10.244.1.8") {
					t.Errorf("%q", log)
				}
				background = nil
				if !served() {
					t.Error("there is no route after the connections are forgotten")
				}
			}
			for range 3 { // the interface goes down and up, and the address stays
				_, _, _ = m.target.Flush()
				m.link(7, "cali2", false)
				_, _, _ = m.target.Flush()
				m.link(7, "cali2", true)
			}
			if _, _, _ = m.target.Flush(); background != nil {
				t.Error("connections of a workload that was here are forgotten")
			}
		})
	}
}

// The connections are forgotten while the interface is made, so that the route need not wait. Those of an address that
// no workload gets are not.
func TestConnectionsAreForgottenBeforeTheInterfaceExists(t *testing.T) {
	m := newMove(t)
	loop := reconcile.NewLoop()
	loop.Background = func(f func()) { f() }
	m.fake.PutConnections(netip.MustParseAddr("10.244.1.20"), netip.MustParseAddr("10.1.0.1"))
	m.target.ForgetConnections(m.fake, loop, zap.NewNop())
	m.config.Endpoints = append(m.config.Endpoints[:2:2], Endpoint{Name: "default/of-cali5", Interface: "cali5",
		Addresses: prefixes("10.244.1.20/32", "10.1.0.1/32")})
	m.target.SetServers(map[netip.Addr]string{netip.MustParseAddr("10.1.0.1"): "etcd"})
	m.target.Configure(m.config)
	m.flush("without interface", "forget connections of 10.244.1.20")
	m.flush("without interface")
	m.link(15, "cali5", true)
	m.flush("with it", "add 10.244.1.20/32 dev #15 proto 80 scope link metric 1024")
}

// The table is read once, at the start: an address of which it had no connections does not wait, unless another part
// still forgets them.
func TestAddressWithoutConnectionsDoesNotWait(t *testing.T) {
	m := newMove(t)
	loop, waiting := reconcile.NewLoop(), false
	loop.Background = func(f func()) { f() }
	m.fake.PutConnections(netip.MustParseAddr("10.244.1.21"))
	m.target.ForgetConnections(m.fake, loop, zap.NewNop())
	m.target.AddressesWait(func(netip.Addr) bool { return waiting })
	m.target.Flush()
	m.link(15, "cali5", true)
	for _, step := range []struct {
		address string
		waiting bool
		forgets bool
	}{{"10.244.1.20", false, false}, {"10.244.1.21", false, true}, {"10.244.1.22", true, true}} {
		waiting = step.waiting
		before := m.fake.Calls("ForgetConnections")
		m.config.Endpoints = append(m.config.Endpoints[:2:2], Endpoint{Name: "default/of-cali5", Interface: "cali5",
			Addresses: prefixes(step.address + "/32")})
		m.target.Configure(m.config)
		for range 4 {
			m.target.Flush()
		}
		forgot := slices.Contains(m.fake.Log(), "forget connections of "+step.address)
		if forgot != step.forgets || m.fake.Calls("ForgetConnections") == before && step.forgets {
			t.Errorf("%s: connections are forgotten: %t", step.address, forgot)
		}
		if s := rowOf(m.target, step.address+"/32"); s.Interface != "cali5" || s.Phase != reconcile.Applied {
			t.Errorf("%s: %+v", step.address, s)
		}
	}
	for _, forgotten := range []bool{false, true} {
		a := netip.MustParseAddr("10.244.1.23")
		m.target.forgetter.noteForgotten([]netip.Addr{a}, forgotten)
		if waiting = false; m.target.forgetter.mayInherit(a) == forgotten {
			t.Errorf("connections of %s are forgotten: %t, and it waits: %t", a, forgotten, forgotten)
		}
	}
	if n := m.fake.Calls("ConnectedAddresses"); n != 1 {
		t.Errorf("the table was read %d times", n)
	}
}

// The CNI plugin makes the route, after it has forgotten the connections, while the address waits for its turn.
func TestThePluginMakesTheRouteOfAWaitingAddress(t *testing.T) {
	m := newMove(t)
	loop := reconcile.NewLoop()
	loop.Background = func(func()) {} // still busy with another address
	m.target.ForgetConnections(m.fake, loop, zap.NewNop())
	m.target.forgetter.forgetting = true
	m.link(15, "cali5", true)
	m.config.Endpoints = append(m.config.Endpoints, Endpoint{Name: "default/of-cali5", Interface: "cali5",
		Addresses: prefixes("10.244.1.20/32")})
	m.target.Configure(m.config)
	m.flush("it waits")
	r := kernel.Route{Dst: prefix("10.244.1.20/32"), Metric: 1024, Protocol: kernel.ProtocolBoot, Type: kernel.Unicast,
		Scope: kernel.ScopeLink, NextHops: []kernel.NextHop{{Link: 15}}}
	m.fake.PutRoute(r)
	m.target.Handle([]kernel.Event{{Type: kernel.EventRoute, Route: r}})
	m.flush("the plugin's route is taken over", "replace 10.244.1.20/32 dev #15 proto 80 scope link metric 1024")
}

// duringApply calls a function while a Flush changes routes.
type duringApply struct {
	*kerneltest.Kernel
	do func()
}

func (d *duringApply) ApplyRoutes(ops []kernel.RouteOp) []error {
	d.do()
	return d.Kernel.ApplyRoutes(ops)
}

// The connections of one batch are forgotten while a Flush is under way, which begins the next batch, and that one ends
// before the next Flush: no address waits for ever.
func TestTwoBatchesEndBetweenTwoFlushes(t *testing.T) {
	const other = "10.244.1.20"
	during := &duringApply{Kernel: testKernel(), do: func() {}}
	m := &move{t: t, fake: during.Kernel, config: testConfig()}
	m.fake.PutConnections(netip.MustParseAddr("10.244.1.8"), netip.MustParseAddr(other))
	m.fake.PutLink(kernel.Link{Index: 7, Name: "cali2", Up: true, Running: true})
	m.fake.PutLink(kernel.Link{Index: 15, Name: "cali5", Up: true, Running: true})
	m.target = New(during, func() time.Time { return time.Unix(1e9, 0) })
	m.target.Synced(true)
	loop := reconcile.NewLoop()
	var batches []func()
	loop.Background = func(f func()) { batches = append(batches, f) }
	m.target.ForgetConnections(m.fake, loop, zap.NewNop())
	end := func() {
		for _, f := range batches {
			f()
		}
		batches = nil
	}
	endpoints := func(more ...Endpoint) {
		m.config.Endpoints = append(m.config.Endpoints[:len(m.config.Endpoints):len(m.config.Endpoints)], more...)
		m.target.Configure(m.config)
		_, _, _ = m.target.Flush()
	}
	without := m.config.Endpoints
	at := func(name, a string) Endpoint {
		return Endpoint{Name: "default/of-" + name, Interface: name, Addresses: prefixes(a + "/32")}
	}
	for range 3 {
		endpoints(at("cali5", other))
		end()
	}
	m.owner("")
	_, _, _ = m.target.Flush() // begins the batch of the first address
	if len(batches) != 1 {
		t.Fatalf("%d batches began", len(batches))
	}
	during.do = end
	m.config.Endpoints = slices.DeleteFunc(slices.Clone(without),
		func(e Endpoint) bool { return e.Addresses[0] == prefix(moving) })
	endpoints() // the other address leaves, too
	if len(batches) != 1 {
		t.Fatalf("%d batches began", len(batches))
	}
	during.do = func() {}
	end()
	for range 3 {
		endpoints(at("cali2", "10.244.1.8"), at("cali5", other))
	}
	for _, a := range []string{moving, other + "/32"} {
		if s := rowOf(m.target, a); s.Phase != reconcile.Applied {
			t.Errorf("%s: %+v", a, s)
		}
	}
}
