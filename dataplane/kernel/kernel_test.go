package kernel

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// testNS makes a network namespace as nettest does, and connects to it.
func testNS(t testing.TB) (name string, c *Conn) {
	t.Helper()
	name = nettest.Namespace(t)
	c, err := Open(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return name, c
}

func linkIndex(t testing.TB, c *Conn, name string) int {
	t.Helper()
	links, err := c.ListLinks()
	if err != nil {
		t.Fatal(err)
	}
	l, ok := linkNamed(links, name)
	if !ok {
		t.Fatalf("no interface %s", name)
	}
	return l.Index
}

func find(t testing.TB, c *Conn, k RouteKey) (Route, bool) {
	t.Helper()
	routes, err := c.ListRoutes()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Key() == k {
			return r, true
		}
	}
	return Route{}, false
}

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// Every kind of route that Manx writes is read back as it was written.
func TestRoutesRoundTrip(t *testing.T) {
	_, c := testNS(t)
	e0, e1 := linkIndex(t, c, "e0"), linkIndex(t, c, "e1")
	routes := map[string]Route{
		"gateway 4": {Dst: prefix("10.244.1.0/26"), Metric: 1024, Protocol: ProtocolBIRD, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("10.1.0.9"), Link: e0}}},
		"gateway 6": {Dst: prefix("fd10:1::/122"), Metric: 1024, Protocol: ProtocolBIRD, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("fd01::9"), Link: e0}}},
		"link-local": {Dst: prefix("fd10:2::/122"), Metric: 7, Protocol: ProtocolBIRD, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("fe80::9"), Link: e1}}},
		"onlink": {Dst: prefix("10.244.2.0/26"), Metric: 1024, Protocol: ProtocolCalico, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("192.0.2.1"), Link: e0, OnLink: true}}},
		"device 4": {Dst: prefix("10.244.3.7/32"), Metric: 1024, Protocol: ProtocolCalico, Type: Unicast,
			Scope: ScopeLink, NextHops: []NextHop{{Link: e1}}},
		"device 6": {Dst: prefix("fd10:3::7/128"), Metric: 1024, Protocol: ProtocolCalico, Type: Unicast,
			NextHops: []NextHop{{Link: e1}}},
		"blackhole 4": {Dst: prefix("10.244.3.0/26"), Protocol: ProtocolBIRD, Type: Blackhole},
		"blackhole 6": {Dst: prefix("fd10:3::/122"), Metric: RouteMetric6, Protocol: ProtocolBIRD, Type: Blackhole},
		"ecmp 4": {Dst: prefix("10.244.4.0/26"), Metric: 1024, Protocol: ProtocolBIRD, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("10.1.0.9"), Link: e0}, {Gateway: addr("10.2.0.9"), Link: e1}}},
		"ecmp 6": {Dst: prefix("fd10:4::/122"), Metric: 1024, Protocol: ProtocolBIRD, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("fd01::9"), Link: e0}, {Gateway: addr("fd02::9"), Link: e1}}},
		"default": {Dst: prefix("0.0.0.0/0"), Metric: MaxMetric, Protocol: ProtocolBIRD, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("10.1.0.1"), Link: e0}}},
		"source": {Dst: prefix("10.244.5.0/26"), Metric: 5, Protocol: ProtocolBIRD, Type: Unicast,
			Src: addr("10.2.0.5"), NextHops: []NextHop{{Gateway: addr("10.1.0.1"), Link: e0}}},
		"mtu 4": {Dst: prefix("10.244.6.0/26"), Protocol: ProtocolBIRD, Type: Unicast, MTU: 1350,
			NextHops: []NextHop{{Gateway: addr("10.1.0.1"), Link: e0}}},
		"mtu 6": {Dst: prefix("fd10:6::/122"), Metric: 7, Protocol: ProtocolBIRD, Type: Unicast, MTU: 1330,
			NextHops: []NextHop{{Gateway: addr("fd01::9"), Link: e0}, {Gateway: addr("fd02::9"), Link: e1}}},
	}
	for name, r := range routes {
		t.Run(name, func(t *testing.T) {
			if errs := c.ApplyRoutes([]RouteOp{{AddRoute, r}}); errs != nil {
				t.Fatal(errs)
			}
			got, ok := find(t, c, r.Key())
			if !ok || !got.Equal(r) {
				t.Fatalf("have %v %v\nwant %v", ok, got, r)
			}
			if errs := c.ApplyRoutes([]RouteOp{{AddRoute, r}}); errs == nil || !errors.Is(errs[0], unix.EEXIST) {
				t.Fatalf("second add: %v, want EEXIST", errs)
			}
			if errs := c.ApplyRoutes([]RouteOp{{ReplaceRoute, r}, {DeleteRoute, r}, {DeleteRoute, r}}); errs != nil {
				t.Fatal(errs)
			}
			if got, ok := find(t, c, r.Key()); ok {
				t.Fatalf("%v is still there", got)
			}
		})
	}
}

// MaxMetric is the largest metric for a LOCAL_PREF.
const MaxMetric = 1<<31 - 1

// Replacing changes the number of next hops either way, in both families, and leaves no sibling behind.
func TestReplaceChangesNextHops(t *testing.T) {
	_, c := testNS(t)
	e0, e1 := linkIndex(t, c, "e0"), linkIndex(t, c, "e1")
	for _, f := range []struct{ dst, a, b string }{{"10.244.4.0/26", "10.1.0.9", "10.2.0.9"},
		{"fd10:4::/122", "fd01::9", "fd02::9"}} {
		a, b := NextHop{Gateway: addr(f.a), Link: e0}, NextHop{Gateway: addr(f.b), Link: e1}
		for i, hops := range [][]NextHop{{a}, {a, b}, {b}, {a, b}, nil, {a, b}, {a}} {
			r := Route{Dst: prefix(f.dst), Metric: 1024, Protocol: ProtocolBIRD, Type: Unicast, NextHops: hops}
			if hops == nil {
				r.Type = Blackhole
			}
			if errs := c.ApplyRoutes([]RouteOp{{ReplaceRoute, r}}); errs != nil {
				t.Fatal(i, errs)
			}
			all, _ := c.ListRoutes()
			all = slices.DeleteFunc(all, func(r Route) bool { return r.Dst != prefix(f.dst) })
			if len(all) != 1 || !all[0].Equal(r) {
				t.Fatalf("step %d: have %v, want %v", i, all, r)
			}
		}
	}
}

// A batch over several messages and system calls reports exactly the routes that failed, and does all others.
func TestBatchReportsEachFailure(t *testing.T) {
	_, c := testNS(t)
	e0 := linkIndex(t, c, "e0")
	const n = 3000
	var ops []RouteOp
	for i := range n {
		gw := addr("10.1.0.9")
		if i%7 == 3 {
			gw = addr("192.0.2.1") // not on the link
		}
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100 + byte(i>>12), byte(i >> 4), byte(i << 4)}), 28)
		ops = append(ops, RouteOp{AddRoute, Route{Dst: dst, Metric: 1024, Protocol: ProtocolBIRD, Type: Unicast,
			NextHops: []NextHop{{Gateway: gw, Link: e0}}}})
	}
	errs := c.ApplyRoutes(ops)
	if len(errs) != n {
		t.Fatalf("%d results", len(errs))
	}
	for i, err := range errs {
		if bad := i%7 == 3; bad != errors.Is(err, unix.ENETUNREACH) {
			t.Fatalf("route %d: %v", i, err)
		}
	}
	if !strings.Contains(errs[3].Error(), "Nexthop has invalid gateway") {
		t.Errorf("the kernel's own words are missing: %v", errs[3])
	}
	routes, err := c.ListRoutes()
	if err != nil {
		t.Fatal(err)
	}
	routes = slices.DeleteFunc(routes, func(r Route) bool { return r.Protocol != ProtocolBIRD })
	if want := n - (n+3)/7; len(routes) != want {
		t.Fatalf("%d routes, want %d", len(routes), want)
	}
}

// next waits for an event that ok accepts.
func next(t *testing.T, events <-chan Event, what string, ok func(Event) bool) {
	t.Helper()
	timeout := time.After(10 * time.Second)
	for {
		select {
		case e := <-events:
			if ok(e) {
				return
			}
		case <-timeout:
			t.Fatalf("no event: %s", what)
		}
	}
}

func watch(t *testing.T, c *Conn, tables ...Table) <-chan Event {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan Event, 10000)
	done := make(chan error)
	go func() {
		done <- c.Watch(ctx, func(batch []Event) {
			for _, e := range batch {
				events <- e
			}
		}, tables...)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	next(t, events, "resync at start", func(e Event) bool { return e.Type == EventResync })
	return events
}

func TestWatchReportsOthersOnly(t *testing.T) {
	name, c := testNS(t)
	e0 := linkIndex(t, c, "e0")
	events := watch(t, c)
	own := Route{Dst: prefix("10.244.1.0/26"), Metric: 1024, Protocol: ProtocolBIRD, Type: Unicast,
		NextHops: []NextHop{{Gateway: addr("10.1.0.9"), Link: e0}}}
	if errs := c.ApplyRoutes([]RouteOp{{AddRoute, own}}); errs != nil {
		t.Fatal(errs)
	}
	nettest.Run(t, "ip", "-n", name, "route", "add", "10.9.0.0/16", "via", "10.1.0.1", "metric", "3")
	next(t, events, "foreign route", func(e Event) bool {
		if e.Route.Dst == own.Dst {
			t.Fatalf("own change is reported: %v", e.Route)
		}
		return e.Type == EventRoute && e.Route.Key() == RouteKey{Dst: prefix("10.9.0.0/16"), Metric: 3}
	})
	nettest.Run(t, "ip", "-n", name, "route", "del", "10.244.1.0/26")
	next(t, events, "own route deleted by another", func(e Event) bool {
		return e.Type == EventRouteGone &&
			e.Route.Equal(own)
	})
	nettest.Run(t, "ip", "-n", name, "addr", "add", "10.1.0.77/24", "dev", "e0")
	next(t, events, "address", func(e Event) bool {
		return e.Type == EventAddress && e.Address == Address{Link: e0, Prefix: prefix("10.1.0.77/24")}
	})
	nettest.Run(t, "ip", "-n", name, "addr", "del", "10.1.0.77/24", "dev", "e0")
	next(t, events, "address gone", func(e Event) bool { return e.Type == EventAddressGone })
	nettest.Run(t, "ip", "-n", name, "link", "set", "e0", "down")
	next(t, events, "link down", func(e Event) bool { return e.Type == EventLink && e.Link.Name == "e0" && !e.Link.Up })
	nettest.Run(t, "ip", "-n", name, "link", "del", "e0")
	next(t, events, "link gone", func(e Event) bool { return e.Type == EventLinkGone && e.Link.Index == e0 })
}

func TestLinksAddressesSysctls(t *testing.T) {
	name, c := testNS(t)
	e0 := linkIndex(t, c, "e0")
	a := Address{Link: e0, Prefix: prefix("172.16.0.1/32")}
	for range 2 { // both are safe to repeat
		if err := c.AddAddress(a); err != nil {
			t.Fatal(err)
		}
	}
	wide := Address{Link: e0, Prefix: prefix("172.17.0.1/24")}
	if err := c.AddAddress(wide); err != nil {
		t.Fatal(err)
	}
	if out := nettest.Run(t, "ip", "-n", name, "addr", "show", "to", "172.17.0.1"); strings.Contains(out, "brd") {
		t.Errorf("the address has a broadcast address that nobody requested: %s", out)
	}
	addresses, err := c.ListAddresses()
	if err != nil || !slices.Contains(addresses, a) || !slices.Contains(addresses, wide) ||
		!slices.Contains(addresses, Address{Link: e0, Prefix: prefix("fd01::5/64")}) {
		t.Fatal(addresses, err)
	}
	for range 2 {
		if err := c.DeleteAddress(a); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(c.SetMTU(e0, 1400), c.SetUp(e0)); err != nil {
		t.Fatal(err)
	}
	links, _ := c.ListLinks()
	if l, _ := linkNamed(links, "e0"); l.MTU != 1400 || !l.Up || l.Kind != "veth" || l.MAC == "" {
		t.Fatalf("%+v", l)
	}
	// A value that only this namespace has.
	if err := c.SetSysctl("net/ipv4/conf/e0/proxy_arp", "1"); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Sysctl("net/ipv4/conf/e0/proxy_arp"); v != "1" || err != nil {
		t.Fatal(v, err)
	}
	if _, err := c.Sysctl("net/ipv4/conf/absent/proxy_arp"); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// A request after Close must not act on the interfaces of the calling thread's namespace.
func TestClosedConnMakesNoRequest(t *testing.T) {
	name, c := testNS(t)
	other, err := Open(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	e0 := linkIndex(t, c, "e0")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	_, ensured := other.EnsureDevice(Device{Name: "e9", Kind: "bridge"})
	_, _, looked := other.InterfaceTo(addr("127.0.0.1"), 0)
	_, counted := other.SentPackets(func(string) bool { return true })
	for what, err := range map[string]error{"SetMTU": other.SetMTU(e0, 1400), "SetUp": other.SetUp(e0),
		"AddAddress":    other.AddAddress(Address{Link: 1, Prefix: prefix("127.9.9.9/32")}),
		"DeleteAddress": other.DeleteAddress(Address{Link: 1, Prefix: prefix("127.9.9.9/32")}),
		"EnsureDevice":  ensured, "InterfaceTo": looked, "SentPackets": counted} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// A kernel with the device creates it, a kernel without it returns one precise error.
func TestVMEnsureIPIP(t *testing.T) {
	_, c := testNS(t)
	l, err := c.EnsureDevice(Device{Name: "tunl0", Kind: "ipip"})
	if errors.Is(err, ErrNoIPIP) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := Neighbour{Link: l.Index, Address: addr("10.0.0.1"), Kind: Unresolved}
	if err := errors.Join(c.SetUp(l.Index), c.SetNeighbour(n), c.SetNeighbour(n)); err != nil {
		t.Fatal(err)
	}
	n.Own = true
	all, err := c.ListNeighbours()
	if err != nil || !slices.ContainsFunc(all, func(o Neighbour) bool { o.MAC = ""; return o == n }) {
		t.Fatalf("the neighbours are %+v, %v", all, err)
	}
	again, err := c.EnsureDevice(Device{Name: "tunl0", Kind: "ipip"})
	if err != nil || again.Index != l.Index || l.Kind != "ipip" {
		t.Fatal(l, again, err)
	}
	if _, err := c.EnsureDevice(Device{Name: "e0", Kind: "ipip"}); err == nil ||
		!strings.Contains(err.Error(), `is of kind "veth"`) {
		t.Fatal(err)
	}
}

// Events that do not fit the queue become one request to read everything again.
func TestLostEventsBecomeResync(t *testing.T) {
	name, c := testNS(t)
	e0 := linkIndex(t, c, "e0")
	other, err := Open(nettest.Path(name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	s, err := c.subscribe(4096)
	if err != nil {
		t.Fatal(err)
	}
	var ops []RouteOp
	for i := range 500 {
		dst := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i >> 4), byte(i << 4)}), 28)
		ops = append(ops, RouteOp{AddRoute, Route{Dst: dst, Protocol: ProtocolStatic, Type: Unicast,
			NextHops: []NextHop{{Gateway: addr("10.1.0.9"), Link: e0}}}})
	}
	if errs := other.ApplyRoutes(ops); errs != nil {
		t.Fatal(errs)
	}
	ctx, cancel := context.WithCancel(t.Context())
	resync := false
	err = readEvents(ctx, s, func(events []Event) {
		resync = slices.ContainsFunc(events, func(e Event) bool { return e.Type == EventResync })
		cancel()
	}, []Table{MainTable})
	if err != nil || !resync {
		t.Fatalf("no resync after events were lost, %v", err)
	}
}
