package route

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/datastore/ippool"
)

func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }
func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func learned(p string, metric uint32, hops ...string) locrib.Route {
	l := locrib.Route{Prefix: prefix(p), Metric: metric}
	for _, h := range hops {
		l.Paths = append(l.Paths, locrib.Path{NextHop: addr(h)})
	}
	return l
}

func via(dst, gateway string, link int, protocol kernel.Protocol) kernel.Route {
	r := kernel.Route{Dst: prefix(dst), Protocol: protocol, Type: kernel.Unicast, NextHops: []kernel.NextHop{
		{Link: link}}}
	if gateway != "" {
		r.NextHops[0].Gateway = addr(gateway)
	}
	return r
}

func prefixes(list ...string) (ps []netip.Prefix) {
	for _, text := range list {
		ps = append(ps, prefix(text))
	}
	return ps
}

// testKernel is node 10.1.0.5/24 on eth0 (#2) and 10.3.0.5/24 on eth1 (#3), with a default route and tunl0 (#4).
func testKernel() *kerneltest.Kernel {
	f := kerneltest.New()
	for i, name := range []string{"eth0", "eth1", "tunl0", "cali1", "caliold"} {
		f.PutLink(kernel.Link{Index: i + 2, Name: name, Up: true, Running: true})
	}
	f.PutLink(kernel.Link{Index: 7, Name: "cali2"}) // down
	f.PutLink(kernel.Link{Index: 8, Name: "vxlan.calico", Up: true})
	for link, a := range map[int]string{2: "10.1.0.5/24", 3: "10.3.0.5/24", 4: "10.246.1.1/32"} {
		f.PutAddress(kernel.Address{Link: link, Prefix: prefix(a)})
	}
	f.PutAddress(kernel.Address{Link: 2, Prefix: prefix("fd01::5/64")})
	f.PutRoute(via("10.1.0.0/24", "", 2, kernel.ProtocolKernel))
	f.PutRoute(via("10.3.0.0/24", "", 3, kernel.ProtocolKernel))
	f.PutRoute(via("0.0.0.0/0", "10.1.0.1", 2, kernel.ProtocolStatic))
	f.PutRoute(kernel.Route{Dst: prefix("10.99.0.0/16"), Protocol: kernel.ProtocolStatic, Type: kernel.Unreachable})
	v6 := via("fd01::/64", "", 2, kernel.ProtocolKernel)
	v6.Metric = 256
	f.PutRoute(v6)
	return f
}

func testConfig() Config {
	return Config{
		Node4: prefix("10.1.0.5/24"), Node6: prefix("fd01::5/64"),
		Pools: ippool.NewTable(
			ippool.Pool{Name: "plain", CIDR: prefix("10.244.0.0/16")},
			ippool.Pool{Name: "always", CIDR: prefix("10.245.0.0/16"), IPIP: ippool.Always},
			ippool.Pool{Name: "cross", CIDR: prefix("10.246.0.0/16"), IPIP: ippool.CrossSubnet},
			ippool.Pool{Name: "vx", CIDR: prefix("10.247.0.0/16"), VXLAN: ippool.Always},
			ippool.Pool{Name: "inner", CIDR: prefix("10.245.128.0/17")}, // more specific than "always"
		),
		Blocks: []netip.Prefix{prefix("10.244.1.0/26"), prefix("fd10:1::/122"), prefix("10.244.9.9/32")},
		Endpoints: []Endpoint{
			{Name: "default/a", Interface: "cali1", Addresses: prefixes("10.244.1.7/32", "fd10:1::7/128")},
			{Name: "default/b", Interface: "cali2", Addresses: prefixes("10.244.1.8/32")},
			{Name: "default/c", Interface: "cali3", Addresses: prefixes("10.244.1.9/32")},
			{Name: "default/d", Interface: "cali1", Addresses: prefixes("10.244.1.7/32")},
			{Name: "a-claim/x", Interface: "cali3", Addresses: prefixes("10.244.1.7/32")}, // claims it, does not exist
		},
		WorkloadPrefixes: []string{"cali"},
	}
}

// testTarget is a target that has applied the test configuration.
func testTarget(f *kerneltest.Kernel) (t *Target, advance func(time.Duration)) {
	clock := time.Unix(1e9, 0)
	t = New(f, func() time.Time { return clock })
	t.Configure(testConfig())
	t.SetPlacesSynced(true)
	_, _, _ = t.Flush()
	return t, func(d time.Duration) { clock = clock.Add(d) }
}

func rowOf(t *Target, p string) Status {
	for _, s := range t.Statuses() {
		if s.Prefix == prefix(p) {
			return s
		}
	}
	return Status{}
}

func TestRules(t *testing.T) {
	for _, c := range []struct {
		rule    string
		learned locrib.Route
		want    string // the route, or the reason
		phase   reconcile.Phase
	}{
		{"next hop on the link", learned("10.244.2.0/26", 1024, "10.1.0.9"),
			"10.244.2.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024", reconcile.Applied},
		{"next hop behind a gateway", learned("10.244.2.0/26", 1024, "10.2.0.9"),
			"10.244.2.0/26 via 10.1.0.1 dev eth0 proto bird metric 1024", reconcile.Applied},
		{"next hop behind an unreachable route", learned("10.244.2.0/26", 1024, "10.99.0.9"),
			`next hop 10.99.0.9 is behind the route "unreachable 10.99.0.0/16 proto static"`, reconcile.Blocked},
		{"no route to the next hop", learned("fd10:2::/122", 1024, "fd09::9"), "no route to next hop fd09::9",
			reconcile.Blocked},
		{"IPv6", learned("fd10:2::/122", 1024, "fd01::9"), "fd10:2::/122 via fd01::9 dev eth0 proto bird metric 1024",
			reconcile.Applied},
		{"IPv6 metric 0 is not left to the kernel, which makes 1024 of it", learned("fd10:2::/122", 0, "fd01::9"),
			"fd10:2::/122 via fd01::9 dev eth0 proto bird metric 1", reconcile.Applied},
		{"link-local next hop with its interface", learned("fd10:2::/122", 1024, "fe80::9%eth1"),
			"fd10:2::/122 via fe80::9 dev eth1 proto bird metric 1024", reconcile.Applied},
		{"link-local next hop without one", learned("fd10:2::/122", 1024, "fe80::9"),
			"next hop fe80::9 is link-local, on an unknown interface", reconcile.Blocked},
		{"several next hops", learned("10.244.2.0/26", 1024, "10.1.0.9", "10.3.0.9"),
			"10.244.2.0/26 nexthop via 10.1.0.9 dev eth0 nexthop via 10.3.0.9 dev eth1 proto bird metric 1024",
			reconcile.Applied},
		{"several next hops by one gateway are one", learned("10.244.2.0/26", 1024, "10.2.0.9", "10.2.0.10"),
			"10.244.2.0/26 via 10.1.0.1 dev eth0 proto bird metric 1024", reconcile.Applied},
		{"what resolves is used", learned("10.244.2.0/26", 1024, "10.99.0.9", "10.3.0.9"),
			"10.244.2.0/26 via 10.3.0.9 dev eth1 proto bird metric 1024", reconcile.Applied},
		{"IPIP Always, also inside the subnet", learned("10.245.2.0/26", 1024, "10.1.0.9"),
			"10.245.2.0/26 via 10.1.0.9 dev tunl0 onlink proto 80 metric 1024", reconcile.Applied},
		{"IPIP via the BGP next hop, not the gateway to it", learned("10.245.2.0/26", 1024, "10.2.0.9"),
			"10.245.2.0/26 via 10.2.0.9 dev tunl0 onlink proto 80 metric 1024", reconcile.Applied},
		{"CrossSubnet inside", learned("10.246.2.0/26", 1024, "10.1.0.9"),
			"10.246.2.0/26 via 10.1.0.9 dev eth0 proto 80 metric 1024", reconcile.Applied},
		{"CrossSubnet outside: the node's subnet counts, not the link's", learned("10.246.2.0/26", 1024, "10.3.0.9"),
			"10.246.2.0/26 via 10.3.0.9 dev tunl0 onlink proto 80 metric 1024", reconcile.Applied},
		{"CrossSubnet with both", learned("10.246.2.0/26", 1024, "10.1.0.9", "10.2.0.9"),
			"10.246.2.0/26 nexthop via 10.1.0.9 dev eth0 nexthop via 10.2.0.9 dev tunl0 onlink proto 80 metric 1024",
			reconcile.Applied},
		{"the most specific pool counts", learned("10.245.200.0/26", 1024, "10.1.0.9"),
			"10.245.200.0/26 via 10.1.0.9 dev eth0 proto bird metric 1024", reconcile.Applied},
		{"outside of all pools", learned("192.0.2.0/24", 7, "10.1.0.9"),
			"192.0.2.0/24 via 10.1.0.9 dev eth0 proto bird metric 7", reconcile.Applied},
		{"a default route beside the host's", learned("0.0.0.0/0", 2147483547, "10.1.0.9"),
			"0.0.0.0/0 via 10.1.0.9 dev eth0 proto bird metric 2147483547", reconcile.Applied},
		{"VXLAN", learned("10.247.2.0/26", 1024, "10.1.0.9"),
			"routes to pool vx (vxlanMode) follow from IPAM's blocks, not from BGP",
			reconcile.Blocked},
		{"own address as next hop", learned("10.244.2.0/26", 1024, "10.3.0.5"), "next hop 10.3.0.5 is this node itself",
			reconcile.Blocked},
		{"own address as next hop of a tunnel", learned("10.245.2.0/26", 1024, "10.1.0.5"),
			"next hop 10.1.0.5 is this node itself", reconcile.Blocked},
		{"own address as prefix", learned("10.1.0.5/32", 1024, "10.1.0.9"), "10.1.0.5 is an address of this node",
			reconcile.Blocked},
		{"own tunnel address as prefix", learned("10.246.1.1/32", 1024, "10.1.0.9"),
			"10.246.1.1 is an address of this node", reconcile.Blocked},
		{"own block stays a blackhole", learned("10.244.1.0/26", 1024, "10.1.0.9"),
			"blackhole 10.244.1.0/26 proto bird", reconcile.Applied},
		{"part of an own block", learned("10.244.1.0/28", 1024, "10.1.0.9"),
			"10.244.1.0/28 is in block 10.244.1.0/26, which belongs to this node", reconcile.Blocked},
		{"an address that another node borrowed from an own block", learned("10.244.1.33/32", 1024, "10.1.0.9"),
			"10.244.1.33/32 via 10.1.0.9 dev eth0 proto bird metric 1024", reconcile.Applied},
		{"what holds an own block", learned("10.244.0.0/20", 1024, "10.1.0.9"),
			"10.244.0.0/20 via 10.1.0.9 dev eth0 proto bird metric 1024", reconcile.Applied},
		{"a local workload's address", learned("10.244.1.7/32", 1024, "10.1.0.9"),
			"10.244.1.7/32 dev cali1 proto 80 scope link metric 1024", reconcile.Applied},
		{"next hop is a local workload", learned("10.88.0.0/24", 1024, "10.244.1.7"),
			"10.88.0.0/24 via 10.244.1.7 dev cali1 proto bird metric 1024", reconcile.Applied},
		{"unspecified next hop", learned("10.244.2.0/26", 1024, "0.0.0.0"),
			"next hop 0.0.0.0 is no address of a router", reconcile.Blocked},
	} {
		t.Run(c.rule, func(t *testing.T) {
			target, _ := testTarget(testKernel())
			target.Learn([]locrib.Route{c.learned})
			if _, failures, err := target.Flush(); failures != 0 || err != nil {
				t.Fatal(failures, err)
			}
			s := rowOf(target, c.learned.Prefix.String())
			got := s.Desired
			if s.Phase == reconcile.Blocked {
				got = s.Reason
			}
			if got != c.want || s.Phase != c.phase {
				t.Errorf("have %s %q\nwant %s %q", s.Phase, got, c.phase, c.want)
			}
			if s.Phase == reconcile.Applied && (len(s.Actual) != 1 || s.Actual[0] != s.Desired) {
				t.Errorf("actual %q, desired %q", s.Actual, s.Desired)
			}
		})
	}
}

func TestLocalRoutes(t *testing.T) {
	target, _ := testTarget(testKernel())
	for p, want := range map[string]string{
		"10.244.1.7/32": "10.244.1.7/32 dev cali1 proto 80 scope link metric 1024",
		"fd10:1::7/128": "fd10:1::7/128 dev cali1 proto 80 metric 1024",
		"10.244.1.8/32": "interface cali2 is down",
		"10.244.1.9/32": "interface cali3 does not exist (yet)",
		"10.244.1.0/26": "blackhole 10.244.1.0/26 proto bird",
		"fd10:1::/122":  "blackhole fd10:1::/122 proto bird metric 1024",
		"10.244.9.9/32": "", // a block of one address has no blackhole
	} {
		s := rowOf(target, p)
		got := s.Desired
		if s.Phase == reconcile.Blocked {
			got = s.Reason
		}
		if got != want {
			t.Errorf("%s: %q, want %q", p, got, want)
		}
	}
	if s := rowOf(target, "10.244.1.7/32"); s.Endpoint != "default/a" ||
		!strings.Contains(s.Reason, "default/a and a-claim/x both claim") {
		t.Errorf("%+v", s)
	}
}

// One changed path costs one decision and one operation, beside any number of other routes.
func TestCostFollowsTheChange(t *testing.T) {
	f := testKernel()
	target, _ := testTarget(f)
	var all []locrib.Route
	for i := range 5000 {
		all = append(all, learned(fmt.Sprintf("10.%d.%d.0/24", 50+i/250, i%250), 1024, "10.1.0.9"))
	}
	target.Learn(all)
	_, _, _ = target.Flush()
	before, _ := f.Calls("ApplyRoutes"), f.Log()
	target.Learn([]locrib.Route{learned("10.50.7.0/24", 1024, "10.1.0.10")})
	_, _, _ = target.Flush()
	target.Learn([]locrib.Route{learned("10.50.8.0/24", 1024, "10.1.0.9")}) // the same again
	_, _, _ = target.Flush()
	if n := f.Calls("ApplyRoutes") - before; n != 1 {
		t.Errorf("%d operations for one change: %q", n, f.Log())
	}
	// A change of a link concerns exactly the routes that resolve through it: none of them, or all.
	f.PutLink(kernel.Link{Index: 3, Name: "eth1"})
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: kernel.Link{Index: 3, Name: "eth1"}}})
	if n, _, _ := target.Flush(); n != 0 {
		t.Errorf("%d steps for an unused link", n)
	}
	down := kernel.Link{Index: 2, Name: "eth0"}
	f.PutLink(down)
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: down}})
	_, _, _ = target.Flush()
	if s := rowOf(target, "10.50.7.0/24"); s.Phase != reconcile.Blocked {
		t.Errorf("%+v", s)
	}
}

// The route with the old metric is removed only after the addition of the new one.
func TestMetricChangeHasNoGap(t *testing.T) {
	f := testKernel()
	target, advance := testTarget(f)
	target.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.1.0.9")})
	_, _, _ = target.Flush()
	f.Log()
	target.Learn([]locrib.Route{learned("10.244.2.0/26", 512, "10.1.0.9")})
	f.Fail("ApplyRoutes", f.Calls("ApplyRoutes")+1, fmt.Errorf("no"))
	_, failures, _ := target.Flush()
	if _, kept := f.Route(kernel.RouteKey{Dst: prefix("10.244.2.0/26"), Metric: 1024}); !kept || failures != 2 {
		t.Fatalf("kept %t, %d failures", kept, failures)
	}
	f.Log()
	advance(time.Second)
	_, _, _ = target.Flush()
	log := f.Log()
	if len(log) != 2 || !strings.HasPrefix(log[0], "add 10.244.2.0/26") ||
		!strings.HasPrefix(log[1], "delete 10.244.2.0/26") {
		t.Fatalf("%q", log)
	}
}

// Routes that we adopt or remove, and routes that we leave alone.
func TestOwnership(t *testing.T) {
	config := testConfig()
	config.IsNode = func(a netip.Addr) bool { return a == addr("10.1.0.9") }
	for _, c := range []struct {
		name string
		r    kernel.Route
		own  bool
	}{
		{"protocol bird", via("192.0.2.0/24", "10.1.0.9", 2, kernel.ProtocolBIRD), true},
		{"80 on tunl0", via("192.0.2.0/24", "10.1.0.9", 4, kernel.ProtocolCalico), true},
		{"80 on a workload's interface", via("192.0.2.1/32", "", 6, kernel.ProtocolCalico), true},
		{"80 to a pool", via("10.244.7.0/26", "10.1.0.77", 2, kernel.ProtocolCalico), true},
		{"80 through a node, of a pool that is gone", via("192.0.2.0/24", "10.1.0.9", 2, kernel.ProtocolCalico), true},
		{"80 blackhole in a pool", kernel.Route{Dst: prefix("10.244.7.0/26"), Protocol: kernel.ProtocolCalico,
			Type: kernel.Blackhole}, true},
		{"80 of something else", via("192.0.2.0/24", "10.1.0.77", 2, kernel.ProtocolCalico), false},
		{"80 blackhole outside", kernel.Route{Dst: prefix("192.0.2.0/24"), Protocol: kernel.ProtocolCalico,
			Type: kernel.Blackhole}, false},
		{"Felix' VXLAN", via("10.247.7.0/26", "10.247.7.0", 8, kernel.ProtocolBoot), true},
		{"80 on the VXLAN device", via("10.247.7.0/26", "10.247.7.0", 8, kernel.ProtocolCalico), true},
		{"the kernel's on the VXLAN device", via("10.247.7.0/26", "", 8, kernel.ProtocolKernel), false},
		{"Felix' plain route to a VXLAN pool, in the subnet", via("10.247.7.0/26", "10.1.0.9", 2,
			kernel.ProtocolCalico), true},
		{"80 on a workload's interface, VXLAN pool", via("10.247.1.1/32", "", 6, kernel.ProtocolCalico), true},
		{"80 blackhole in a VXLAN pool", kernel.Route{Dst: prefix("10.247.7.0/26"), Protocol: kernel.ProtocolCalico,
			Type: kernel.Blackhole}, true},
		{"static to a pool", via("10.244.7.0/26", "10.1.0.9", 2, kernel.ProtocolStatic), false},
		{"the CNI plugin's to a workload of ours", via("10.244.1.8/32", "", 5, kernel.ProtocolBoot), true},
		{"boot on a workload's interface to an unknown address", via("10.244.1.99/32", "", 5, kernel.ProtocolBoot),
			false},
		{"boot elsewhere", via("10.244.1.8/32", "", 2, kernel.ProtocolBoot), false},
		{"connected", via("10.244.1.8/32", "", 5, kernel.ProtocolKernel), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := testKernel()
			c.r.Metric = 77
			f.PutRoute(c.r)
			target := New(f, time.Now)
			target.Configure(config)
			target.SetPlacesSynced(true)
			target.Synced(true)
			_, _, _ = target.Flush()
			if _, there := f.Route(c.r.Key()); there == c.own {
				t.Errorf("own %t, still there %t", c.own, there)
			}
		})
	}
}

// The way to an address is the most specific route in the kernel, regardless of the desired routes.
func TestTowardsAnAddress(t *testing.T) {
	f := testKernel()
	target, _ := testTarget(f)
	target.Learn([]locrib.Route{learned("10.244.0.0/16", 9, "10.1.0.9"), learned("10.244.2.0/26", 9, "10.1.0.8"),
		learned("10.244.2.7/32", 9, "10.99.0.9"), learned("fd10:2::/122", 9, "fd01::9")})
	_, _, _ = target.Flush()
	for address, want := range map[string]string{
		"10.244.2.1": "10.244.2.0/26", "10.244.2.7": "10.244.2.0/26", // the /32 is blocked
		"10.244.3.1": "10.244.0.0/16", "10.244.1.7": "10.244.1.7/32", "10.244.1.8": "10.244.1.0/26",
		"fd10:2::1": "fd10:2::/122", "10.7.7.7": "invalid Prefix", "fd99::1": "invalid Prefix",
	} {
		row, ok := target.Towards(addr(address))
		if row.Prefix.String() != want || ok != row.Prefix.IsValid() {
			t.Errorf("%s: %s %t, want %s", address, row.Prefix, ok, want)
		}
		if ok && (row.Interface == "") != !strings.Contains(row.Actual[0], " dev ") ||
			ok && row.Interface != "" && !strings.Contains(row.Actual[0]+" ", " dev "+row.Interface+" ") {
			t.Errorf("%s: the interface of %q is %q", address, row.Actual[0], row.Interface)
		}
	}
}

func TestLongestPrefixMatch(t *testing.T) {
	table := newRIB()
	dev := func(p string, metric uint32, link int) kernel.Route {
		r := via(p, "", link, kernel.ProtocolStatic)
		r.Metric = metric
		return r
	}
	routes := []kernel.Route{dev("0.0.0.0/0", 0, 1), dev("10.0.0.0/8", 0, 2), dev("10.1.0.0/16", 50, 3),
		dev("10.1.0.0/16", 20, 4), dev("::/0", 0, 9)}
	for _, r := range routes {
		table.put(r)
	}
	all := func(kernel.Route) bool { return true }
	lookup := func(a string, usable func(kernel.Route) bool) int {
		r, ok := table.lookup(addr(a), usable)
		if !ok {
			return 0
		}
		return r.NextHops[0].Link
	}
	for a, want := range map[string]int{"10.1.2.3": 4, "10.2.2.3": 2, "11.1.1.1": 1, "2001:db8::1": 9} {
		if got := lookup(a, all); got != want {
			t.Errorf("%s by #%d, want #%d", a, got, want)
		}
	}
	if got := lookup("10.1.2.3", func(r kernel.Route) bool { return r.NextHops[0].Link != 4 }); got != 3 {
		t.Errorf("the second best is #%d", got)
	}
	for _, r := range routes[2:4] {
		if !table.remove(r) || table.remove(r) {
			t.Error("remove")
		}
	}
	if got := lookup("10.1.2.3", all); got != 2 {
		t.Errorf("after removal by #%d", got)
	}
}
