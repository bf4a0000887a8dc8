package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/reconcile"
	"github.com/manxnet/manx/dataplane/route"
)

// target is the target of a targetLoop.
type target interface {
	Handle([]kernel.Event)
	Flush() (steps, failures int, err error)
}

// targetLoop flushes a target and hands it the kernel's events, as an agent does.
type targetLoop struct {
	target target
	events chan []kernel.Event
}

func startTarget(t *testing.T, c *kernel.Conn, target target, tables ...kernel.Table) *targetLoop {
	t.Helper()
	k := &targetLoop{target, make(chan []kernel.Event, 10000)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Watch(ctx, func(events []kernel.Event) { k.events <- events }, tables...) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	k.target.Handle(<-k.events)
	return k
}

// until flushes after each event, until ok returns true.
func (k *targetLoop) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		select {
		case events := <-k.events:
			k.target.Handle(events)
		case <-time.After(5 * time.Millisecond):
		}
		_, _, _ = k.target.Flush()
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

// table is a routing table of IPv4 as ip(8) prints it.
func (h *host) table(number string) (lines []string) {
	h.t.Helper()
	for line := range strings.Lines(h.ip("-4 route show table all")) {
		if line = strings.Join(strings.Fields(line), " "); strings.Contains(line+" ", " table "+number+" ") {
			lines = append(lines, strings.Replace(line, " table "+number, "", 1))
		}
	}
	slices.Sort(lines)
	return lines
}

// The same prefix is desired in main and in a second table, by another gateway. The two routes are independent, and no
// route of a third table is changed, for any protocol.
func TestRoutesOfASecondTable(t *testing.T) {
	for _, number := range []uint32{100, 100000} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			h := newHost(t)
			c := h.open()
			second, name := kernel.TableOf(number), fmt.Sprint(number)
			peer := netip.MustParsePrefix("192.0.2.9/32")
			inMain := route.Static{Prefix: peer, Via: netip.MustParseAddr("10.1.0.3")}
			beside := route.Static{Prefix: peer, Via: netip.MustParseAddr("10.1.0.4"), Table: second}
			const mainRoute = "192.0.2.9 via 10.1.0.3 dev eth0 proto bird"
			const besideRoute = "192.0.2.9 via 10.1.0.4 dev eth0 proto bird"
			foreign := []string{"192.0.2.77 via 10.1.0.9 dev eth0 proto bird metric 1024"}
			h.ip("route add 192.0.2.77 via 10.1.0.9 proto bird metric 1024 table 7")
			h.ip("route add 192.0.2.8 via 10.1.0.9 proto bird metric 1024 table " + name) // left by an earlier run
			h.ip("route add 192.0.2.7 via 10.1.0.9 proto static table " + name)           // of another program
			routes := route.New(c, time.Now)
			config := route.Config{Node4: netip.MustParsePrefix("10.1.0.5/24"),
				Tables: []kernel.Table{kernel.MainTable, second}}
			routes.Configure(config)
			routes.Synced(true)
			k := startTarget(t, c, routes, kernel.MainTable, second)
			want := func(what string, inMain, inSecond []string) {
				t.Helper()
				inMain = append(slices.Clone(inMain), defaultRoute)
				inSecond = append(slices.Clone(inSecond), "192.0.2.7 via 10.1.0.9 dev eth0 proto static")
				slices.Sort(inMain)
				slices.Sort(inSecond)
				k.until(t, what, func() bool {
					return slices.Equal(h.main("-4"), inMain) && slices.Equal(h.table(name), inSecond)
				})
				if have := h.table("7"); !slices.Equal(have, foreign) {
					t.Fatalf("%s: table 7 has %q, want %q", what, have, foreign)
				}
			}
			want("the leftover to go", nil, nil)
			routes.SetStatic([]route.Static{inMain, beside})
			want("both routes", []string{mainRoute}, []string{besideRoute})
			checkRows(t, routes, second)
			h.ip("route del 192.0.2.9 table " + name)
			want("the repair of the second table", []string{mainRoute}, []string{besideRoute})
			h.ip("route replace 192.0.2.9 via 10.1.0.8 proto static table " + name)
			k.until(t, "a place that somebody else holds", func() bool {
				return failing(routes, second) == 1 && failing(routes, kernel.MainTable) == 0
			})
			h.ip("route del 192.0.2.9 table " + name)
			want("the place to be ours again", []string{mainRoute}, []string{besideRoute})
			h.ip("route flush table main proto bird")
			want("the repair of main", []string{mainRoute}, []string{besideRoute})
			h.ip("route add 192.0.2.66 via 10.1.0.9 proto bird table " + name)
			want("what nobody wants in the second table to go", []string{mainRoute}, []string{besideRoute})
			routes.SetStatic([]route.Static{beside})
			want("main's to go alone", nil, []string{besideRoute})
			routes.SetStatic([]route.Static{inMain})
			want("the second table's to go alone", []string{mainRoute}, nil)
			routes.SetStatic([]route.Static{inMain, beside})
			want("both again", []string{mainRoute}, []string{besideRoute})
			config.Tables = nil
			routes.Configure(config)
			want("a table that is not ours any more to be left clean", []string{mainRoute}, nil)
			s := rowsIn(routes, second)
			if len(s) != 1 || s[0].Phase != reconcile.Blocked || s[0].Reason != "table "+name+
				" is not one of this node's" {
				t.Errorf("%+v", s)
			}
		})
	}
}

func rowsIn(routes *route.Target, table kernel.Table) []route.Status {
	return slices.DeleteFunc(routes.Statuses(), func(s route.Status) bool { return s.Table != table })
}

func failing(routes *route.Target, table kernel.Table) (n int) {
	for _, s := range rowsIn(routes, table) {
		if s.Phase == reconcile.Failed {
			n++
		}
	}
	return n
}

// checkRows checks the users' view of two routes to one prefix.
func checkRows(t *testing.T, routes *route.Target, second kernel.Table) {
	t.Helper()
	rows := routes.Statuses()
	if len(rows) != 2 || rows[0].Table != kernel.MainTable || rows[1].Table != second {
		t.Fatalf("%+v", rows)
	}
	for i, want := range []string{"192.0.2.9/32 via 10.1.0.3 dev eth0 proto bird",
		fmt.Sprintf("192.0.2.9/32 via 10.1.0.4 dev eth0 table %s proto bird", second)} {
		if r := rows[i]; r.Phase != reconcile.Applied || r.Desired != want || !slices.Equal(r.Actual, []string{want}) {
			t.Errorf("%+v, want %s", r, want)
		}
	}
	if n := routes.Counts()[reconcile.Applied]; n != 2 {
		t.Errorf("%d routes are counted as applied", n)
	}
	s, ok := routes.Status(rows[0].Prefix)
	if !ok || s.Table != kernel.MainTable || !strings.HasSuffix(s.Desired, "dev eth0 proto bird") {
		t.Errorf("%+v", s)
	}
}

// Cleanup covers the tables and devices of a node.
func TestCleanupGoesByTablesAndDevices(t *testing.T) {
	h := newHost(t)
	for _, table := range []string{"main", "100", "7"} {
		h.ip("route add 10.244.1.0/24 via 10.1.0.9 proto 12 metric 1024 table " + table)
	}
	for _, device := range []string{"own.test", "other.test"} {
		h.ip("link add " + device + " type bridge")
		h.ip("addr add 192.0.2.1/32 dev " + device)
	}
	n, err := cleanup(KernelOf(h.open()), []kernel.Table{kernel.MainTable, 100}, []string{"own.test", "absent"})
	if n != 3 || err != nil {
		t.Errorf("removed %d, %v; want 3", n, err)
	}
	if have := h.main("-4"); len(have) != 1 || len(h.table("100")) != 0 || len(h.table("7")) != 1 {
		t.Errorf("main has %q, 100 %q, 7 %q", have, h.table("100"), h.table("7"))
	}
	own, other := h.ip("-o -4 addr show dev own.test"), h.ip("-o -4 addr show dev other.test")
	if own != "" || other == "" {
		t.Errorf("addresses: own %q, other %q", own, other)
	}
}
