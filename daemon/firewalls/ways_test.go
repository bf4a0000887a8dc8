package firewalls

import (
	"fmt"
	"net/netip"
	"testing"
)

// An evaluation in a large cluster looks up one route for each subnet of nodes, and no more than a few in all.
func TestWaysFollowSubnets(t *testing.T) {
	const nodes = 5000
	for _, x := range []struct {
		rule    string
		node    func(int) string // its address with the length of its subnet
		iface   string           // of every route
		lookups int
		known   int // nodes with an interface
	}{
		{"one subnet", func(i int) string { return fmt.Sprintf("10.1.%d.%d/16", i/250, i%250+1) }, "eth0", 1, nodes},
		{"racks", func(i int) string { return fmt.Sprintf("10.1.%d.%d/24", i/250, i%250+1) }, "eth0", 20, nodes},
		{"single addresses", func(i int) string { return fmt.Sprintf("10.1.%d.%d/32", i/250, i%250+1) }, "eth0", 20,
			nodes},
		{"single addresses of IPv6", func(i int) string { return fmt.Sprintf("fd00:0:0:%x::%x/128", i/250, i+1) },
			"eth0", 20, nodes},
		{"more racks than lookups", func(i int) string { return fmt.Sprintf("10.%d.%d.1/24", i/250, i%250) }, "eth0",
			mostLookups, mostLookups},
		{"no route", func(i int) string { return fmt.Sprintf("10.1.%d.%d/16", i/250, i%250+1) }, "", mostTries, 0},
	} {
		lookups, known := 0, 0
		w := NewWays(func(netip.Addr) string {
			lookups++
			return x.iface
		})
		for i := range nodes {
			if w.To(netip.MustParsePrefix(x.node(i))) != "" {
				known++
			}
		}
		if lookups != x.lookups || known != x.known {
			t.Errorf("%s: %d lookups for %d nodes, want %d for %d", x.rule, lookups, known, x.lookups, x.known)
		}
	}
}

// An address without a route, such as that of a Node that is gone from the network, does not speak for its subnet.
func TestWaysTryAnotherNode(t *testing.T) {
	w := NewWays(func(a netip.Addr) string {
		if a == netip.MustParseAddr("10.1.0.1") {
			return ""
		}
		return "eth1"
	})
	first, second := netip.MustParsePrefix("10.1.0.1/24"), netip.MustParsePrefix("10.1.0.2/24")
	if a, b, c := w.To(first), w.To(second), w.To(first); a != "" || b != "eth1" || c != "eth1" {
		t.Errorf("%q, %q, %q", a, b, c)
	}
}
