package kernel

import (
	"errors"
	"github.com/manxnet/manx/dataplane/kernel/nettest"
	"slices"
	"strings"
	"testing"
)

// A prefix and a metric identify one route in each table, in both families. A table's number may need more than a byte.
func TestTablesAreApart(t *testing.T) {
	name, c := testNS(t)
	e0 := linkIndex(t, c, "e0")
	for _, f := range []struct{ family, dst, gateway string }{
		{"-4", "10.244.1.0/26", "10.1.0.9"}, {"-6", "fd10:1::/122", "fd01::9"},
	} {
		in := func(table Table, protocol Protocol) Route {
			return Route{Dst: prefix(f.dst), Metric: 7, Table: table, Protocol: protocol, Type: Unicast,
				NextHops: []NextHop{{Gateway: addr(f.gateway), Link: e0}}}
		}
		routes := []Route{in(MainTable, ProtocolBIRD), in(TableOf(100), ProtocolCalico),
			in(TableOf(100000), ProtocolStatic)}
		list, err := c.ListRoutes(100)
		if err != nil || slices.ContainsFunc(list, func(r Route) bool { return r.Dst == prefix(f.dst) }) {
			t.Fatal("before there was any route in it:", list, err)
		}
		for _, r := range routes {
			if errs := c.ApplyRoutes([]RouteOp{{AddRoute, r}}); errs != nil {
				t.Fatal(errs)
			}
		}
		have := func(tables ...Table) (list []Route) {
			t.Helper()
			all, err := c.ListRoutes(tables...)
			if err != nil {
				t.Fatal(err)
			}
			return slices.DeleteFunc(all, func(r Route) bool { return r.Dst != prefix(f.dst) })
		}
		for _, r := range routes {
			if list := have(r.Table); len(list) != 1 || !list[0].Equal(r) {
				t.Errorf("table %s has %v, want %v", r.Table, list, r)
			}
		}
		if list := have(); len(list) != 1 || !list[0].Equal(routes[0]) {
			t.Errorf("no table is main, and has %v", list)
		}
		if list := have(MainTable, 100000); len(list) != 2 {
			t.Errorf("two tables have %v", list)
		}
		if out := nettest.Run(t, "ip", f.family, "-n", name, "route", "show", "table", "100000"); !strings.Contains(out,
			f.gateway) {
			t.Errorf("table 100000 has %q", out)
		}
		replaced := routes[1]
		replaced.NextHops, replaced.Type = nil, Throw
		if errs := c.ApplyRoutes([]RouteOp{{DeleteRoute, routes[2]}, {ReplaceRoute, replaced}}); errs != nil {
			t.Fatal(errs)
		}
		if list := have(MainTable, 100, 100000); len(list) != 2 || !list[0].Equal(routes[0]) ||
			!list[1].Equal(replaced) {
			t.Errorf("after a removal and a replacement in two tables: %v", list)
		}
	}
}

func TestTableNames(t *testing.T) {
	r := Route{Dst: prefix("10.244.1.0/26"), Metric: 7, Table: 100, Protocol: ProtocolBIRD, Type: Blackhole}
	const text, key = "blackhole 10.244.1.0/26 table 100 proto bird metric 7", "10.244.1.0/26 table 100 metric 7"
	if r.String() != text || r.Key().String() != key {
		t.Error(r, r.Key())
	}
	other := r
	other.Table = MainTable
	if TableOf(254) != MainTable || other.Equal(r) {
		t.Error("table 254 is main, table 100 is not")
	}
}

// A watch reports the routes of its own tables that other programs change, but not the same prefix in another table.
func TestWatchReportsItsTables(t *testing.T) {
	name, c := testNS(t)
	for _, tables := range [][]Table{nil, {100}, {MainTable, 100000}} {
		events := watch(t, c, tables...)
		numbers := map[Table]string{MainTable: "254", 100: "100", 100000: "100000", 8: "8"}
		for _, table := range numbers {
			nettest.Run(t, "ip", "-n", name, "route", "add", "10.9.0.0/16", "via", "10.1.0.1", "table", table)
		}
		nettest.Run(t, "ip", "-n", name, "addr", "add", "10.1.0.77/24", "dev", "e0") // the last event
		seen := map[Table]bool{}
		next(t, events, "the address", func(e Event) bool {
			if e.Type == EventRoute && e.Route.Dst == prefix("10.9.0.0/16") {
				seen[e.Route.Table] = true
			}
			return e.Type == EventAddress
		})
		for table := range numbers {
			if want := slices.Contains(OrMain(tables), table); seen[table] != want {
				t.Errorf("watching %v: a route of table %s is reported: %t", tables, table, seen[table])
			}
		}
		for _, table := range numbers {
			nettest.Run(t, "ip", "-n", name, "route", "del", "10.9.0.0/16", "table", table)
		}
		nettest.Run(t, "ip", "-n", name, "addr", "del", "10.1.0.77/24", "dev", "e0")
	}
}

// One method creates devices of every kind. A used name, and a kind that the kernel lacks, are reported.
func TestEnsureDevice(t *testing.T) {
	_, c := testNS(t)
	made, err := c.EnsureDevice(Device{Name: "br0", Kind: "bridge"})
	if err != nil || made.Kind != "bridge" || made.Name != "br0" {
		t.Fatal(made, err)
	}
	if again, err := c.EnsureDevice(Device{Name: "br0", Kind: "bridge"}); err != nil || again.Index != made.Index {
		t.Error(again, err)
	}
	_, err = c.EnsureDevice(Device{Name: "br0", Kind: "ipip"})
	if err == nil || !strings.Contains(err.Error(), `is of kind "bridge", not ipip`) {
		t.Error(err)
	}
	_, err = c.EnsureDevice(Device{Name: "x0", Kind: "nosuchkind"})
	if !errors.Is(err, NoKindError{"nosuchkind"}) || errors.Is(err, ErrNoIPIP) ||
		!strings.Contains(err.Error(), "no devices of kind nosuchkind") {
		t.Error(err)
	}
}
