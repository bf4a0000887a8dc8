package conntrack

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/nettest"
)

// A connection counts for the workload that began it, else for the one that answers; deleting takes as many as it may.
func TestCountAndDeleteConnections(t *testing.T) {
	ns, c := tableIn(t)
	nft(t, ns, "add table inet t")
	nft(t, ns, "add chain inet t o { type filter hook output priority 0; }")
	nft(t, ns, "add rule inet t o ct state new counter")
	for _, a := range []string{"10.9.0.1/32", "10.9.0.2/32", "10.9.0.3/32", "10.9.1.7/32", "fd09::1/128",
		"fd09::2/128"} {
		addAddress(t, ns, a)
	}
	owners := Owners{}
	for text, owner := range map[string]int{"10.9.0.1": 0, "fd09::1": 0, "10.9.0.2": 1, "10.9.1.7": 1} {
		owners[netip.MustParseAddr(text)] = owner
	}
	for _, x := range []struct {
		times    int
		from, to string
	}{{5, "10.9.0.1", "10.9.0.2"}, {3, "10.9.0.3", "10.9.0.1"}, {2, "10.9.1.7", "10.9.0.3"},
		{1, "10.9.0.3", "10.9.0.3"}, {4, "fd09::1", "fd09::2"}, {1, "fd09::2", "fd09::2"}} {
		for range x.times {
			connect(t, c, x.from, x.to)
		}
	}
	count := func(what string, want ...Usage) {
		t.Helper()
		if got, err := c.CountConnections(owners, 2); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", what, got, err, want)
		}
	}
	count("at first", Usage{9, 3}, Usage{2, 0})
	if n, err := c.DeleteConnections(owners, []Usage{{5, 2}, {0, 0}}); n != 7 || err != nil {
		t.Errorf("%d deleted, %v", n, err)
	}
	count("without the excess", Usage{4, 1}, Usage{2, 0})
	if n, err := c.DeleteConnections(owners, []Usage{{100, 100}, {1, 1}}); n != 6 || err != nil {
		t.Errorf("%d deleted, %v", n, err)
	}
	count("in the end", Usage{}, Usage{1, 0})
}

// addAddress gives an address to the loopback device; it can be used at once.
func addAddress(t *testing.T, ns, address string) {
	t.Helper()
	args := []string{"-n", ns, "addr", "add", address, "dev", "lo"}
	if strings.Contains(address, ":") {
		args = append(args, "nodad")
	}
	nettest.Run(t, append([]string{"ip"}, args...)...)
}
