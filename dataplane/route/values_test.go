package route

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// A next hop has a way for each device that leads to it. Each missing device has its own reason.
func TestWaysToANextHop(t *testing.T) {
	const second = "vxlan.calico"
	f := testKernel()
	target, _ := testTarget(f)
	nh := addr("10.2.0.9")
	vteps := vtep.NewTable(model.IPv4)
	vteps.Set("n2", &model.Node{Spec: model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "10.2.0.9/24"},
		IPv4VXLANTunnelAddr: "10.245.2.1"}})
	target.rules.vteps = func(model.Family) *vtep.Table { return vteps }
	text := func(device string) string {
		w := target.rules.reach(nh, device)
		if len(w.hops) == 0 {
			return w.missing(&ippool.Pool{Name: "p", IPIP: ippool.Always})
		}
		return kernel.Route{Dst: prefix("10.245.2.0/26"), Type: kernel.Unicast, NextHops: w.hops}.Text(
			target.rules.linkName)
	}
	const byTunnel = "10.245.2.0/26 via 10.2.0.9 dev tunl0 onlink proto 0"
	const bySecond = "10.245.2.0/26 via 10.245.2.1 dev vxlan.calico onlink proto 0"
	step := func(what, direct, tunnel, other string) {
		t.Helper()
		_, _, _ = target.Flush()
		for device, want := range map[string]string{directly: direct, model.DeviceIPIP: tunnel, second: other} {
			if got := text(device); got != want {
				t.Errorf("%s: through %q: %q, want %q", what, device, got, want)
			}
		}
	}
	const direct = "10.245.2.0/26 via 10.1.0.1 dev eth0 proto 0"
	target.Learn([]locrib.Route{learned("10.245.2.0/26", 1024, "10.2.0.9")}) // keeps the resolution in use
	step("both devices are up", direct, byTunnel, bySecond)
	f.Log()
	target.setMissing(map[string]error{second: errors.New("no such thing")})
	step("one is missing", direct, byTunnel, "no such thing; pool p cannot be used on this node")
	if log := f.Log(); len(log) != 0 {
		t.Errorf("a route through the other device is written again: %q", log)
	}
	down := kernel.Link{Index: 4, Name: model.DeviceIPIP}
	f.PutLink(down)
	target.Handle([]kernel.Event{{Type: kernel.EventLink, Link: down}})
	target.setMissing(nil)
	step("the other is down", direct, "pool p uses IPIP, and interface tunl0 is not up (yet)", bySecond)
	if s := rowOf(target, "10.245.2.0/26"); s.Phase != reconcile.Blocked {
		t.Errorf("%+v", s)
	}
}

// inTable has the route of Static in a table.
func inTable(table kernel.Table, gateway string) kernel.Route {
	r := via("192.0.2.9/32", gateway, 2, kernel.ProtocolBIRD)
	r.Table = table
	return r
}

func tableTarget(f *kerneltest.Kernel, tables ...kernel.Table) (*Target, func(time.Duration)) {
	target, advance := testTarget(f)
	c := testConfig()
	c.Tables = tables
	target.Configure(c)
	target.Synced(true)
	advance(time.Second) // it is time to read them
	_, _, _ = target.Flush()
	return target, advance
}

// staticTo returns a route to a peer by a gateway, in main or another table.
func staticTo(p, gateway string, tables ...kernel.Table) Static {
	r := Static{Prefix: prefix(p), Via: addr(gateway)}
	for _, table := range tables {
		r.Table = table
	}
	return r
}

// A change of a prefix in one table has no effect on the same prefix and metric in another.
func TestTheSamePrefixInTwoTables(t *testing.T) {
	f := testKernel()
	target, advance := tableTarget(f, 100)
	have := func(want ...kernel.Route) {
		t.Helper()
		for range 2 {
			_, _, _ = target.Flush()
			advance(time.Second)
		}
		all, _ := f.ListRoutes(kernel.MainTable, 100, 7)
		all = slices.DeleteFunc(all, func(r kernel.Route) bool { return r.Dst != prefix("192.0.2.9/32") })
		slices.SortFunc(all, func(a, b kernel.Route) int { return int(a.Table) - int(b.Table) })
		if !slices.EqualFunc(all, want, kernel.Route.Equal) {
			t.Fatalf("have %v, want %v", all, want)
		}
	}
	foreign := inTable(7, "10.1.0.99")
	f.PutRoute(foreign)
	first, second := inTable(kernel.MainTable, "10.1.0.3"), inTable(100, "10.1.0.4")
	target.SetStatic([]Static{staticTo("192.0.2.9/32", "10.1.0.3"), staticTo("192.0.2.9/32", "10.1.0.4", 100)})
	have(first, foreign, second)

	f.DropRoute(second.Key())
	target.Handle([]kernel.Event{{Type: kernel.EventRouteGone, Route: second}})
	have(first, foreign, second)
	// Events of a table that this target ignores, as from a watch with more tables.
	target.Handle([]kernel.Event{{Type: kernel.EventRouteGone, Route: inTable(7, "10.1.0.3")},
		{Type: kernel.EventRoute, Route: foreign}})
	have(first, foreign, second)
	// A learned route for the same prefix takes the place that main's static one leaves, with another metric; the
	// failure to add it keeps the old one, and does not hold up the removal in the second table.
	target.Learn([]locrib.Route{learned("192.0.2.9/32", 77, "10.1.0.9")})
	target.SetStatic(nil)
	f.Fail("ApplyRoutes", f.Calls("ApplyRoutes")+1, errors.New("no"))
	_, _, _ = target.Flush()
	if _, there := f.Route(first.Key()); !there {
		t.Error("main's old route went before the new one was in")
	}
	if _, there := f.Route(second.Key()); there {
		t.Error("the removal in the second table waits for main")
	}
	advance(time.Minute)
	learnt := inTable(kernel.MainTable, "10.1.0.9")
	learnt.Metric = 77
	have(learnt, foreign)
	for n := range target.extras {
		if target.table.row(n).table != kernel.MainTable {
			t.Errorf("what is known of %s is left", target.table.key(n))
		}
	}
}

// The routes of others in a second table occupy their prefixes there, and do not resolve next hops.
func TestRoutesOfOthersInASecondTable(t *testing.T) {
	f := testKernel()
	other := via("10.2.0.0/16", "10.3.0.1", 3, kernel.ProtocolStatic)
	other.Table = 100
	holder := inTable(100, "10.1.0.99")
	holder.Protocol = kernel.ProtocolStatic
	f.PutRoute(other)
	f.PutRoute(holder)
	target, advance := tableTarget(f, 100)
	target.Learn([]locrib.Route{learned("10.244.2.0/26", 1024, "10.2.0.9")})
	target.SetStatic([]Static{staticTo("192.0.2.9/32", "10.1.0.4", 100), staticTo("192.0.2.9/32", "10.1.0.3")})
	_, failures, _ := target.Flush()
	if s := rowOf(target, "10.244.2.0/26"); s.Desired != "10.244.2.0/26 via 10.1.0.1 dev eth0 proto bird metric 1024" {
		t.Errorf("%+v", s)
	}
	if r, ok := f.Route(inTable(kernel.MainTable, "").Key()); !ok || failures != 1 {
		t.Errorf("main: %v %t, %d failures", r, ok, failures)
	}
	if r, _ := f.Route(holder.Key()); !r.Equal(holder) {
		t.Errorf("the route of another was changed to %v", r)
	}
	// Another route of main, with the key of one in the second table, does not take its place among those of others.
	sibling := other
	sibling.Table = kernel.MainTable
	for _, e := range []kernel.EventType{kernel.EventRoute, kernel.EventRouteGone} {
		target.Handle([]kernel.Event{{Type: e, Route: sibling}})
	}
	if held, ok := target.rules.rib.holder(other.Key()); !ok || !held.Equal(other) {
		t.Errorf("of the second table, %v is known", held)
	}
	f.DropRoute(holder.Key())
	target.Handle([]kernel.Event{{Type: kernel.EventRouteGone, Route: holder}})
	advance(time.Minute)
	_, failures, _ = target.Flush()
	if r, _ := f.Route(holder.Key()); !r.Equal(inTable(100, "10.1.0.4")) || failures != 0 {
		t.Errorf("the free place has %v, %d failures", r, failures)
	}
}
