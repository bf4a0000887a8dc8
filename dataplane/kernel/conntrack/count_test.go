package conntrack

import (
	"net/netip"
	"slices"
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
		nettest.Run(t, "ip", "-n", ns, "addr", "add", a, "dev", "lo")
	}
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	owners := NewOwners([][]netip.Prefix{prefixes("10.9.0.1/32", "fd09::1/128"),
		prefixes("10.9.0.2/32", "10.9.1.0/24")})
	for _, x := range []struct {
		times    int
		from, to string
	}{{5, "10.9.0.1", "10.9.0.2"}, {3, "10.9.0.3", "10.9.0.1"}, {2, "10.9.1.7", "10.9.0.3"},
		{1, "10.9.0.3", "10.9.0.3"}, {4, "fd09::1", "fd09::2"}, {1, "fd09::2", "fd09::2"}} {
		for range x.times {
			connect(t, c, x.from, x.to)
		}
	}
	count := func(what string, want ...int) {
		t.Helper()
		if got, err := c.CountConnections(owners, 2); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v; want %v", what, got, err, want)
		}
	}
	count("at first", 12, 2)
	if n, err := c.DeleteConnections(owners, []int{7, 0}); n != 7 || err != nil {
		t.Errorf("%d deleted, %v", n, err)
	}
	count("without the excess", 5, 2)
	if n, err := c.DeleteConnections(owners, []int{100, 1}); n != 6 || err != nil {
		t.Errorf("%d deleted, %v", n, err)
	}
	count("in the end", 0, 1)
}
