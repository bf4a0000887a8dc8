package route

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/datastore/ippool"
)

// benchPools makes n pools, each a /16.
func benchPools(n int) ippool.Table {
	list := make([]ippool.Pool, n)
	for i := range list {
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{30, byte(i)}), 16)
		list[i] = ippool.Pool{Name: fmt.Sprintf("pool-%03d", i), CIDR: cidr, IPIP: ippool.CrossSubnet}
	}
	return ippool.NewTable(list...)
}

// BenchmarkDecide100kRoutes measures the cost of one decision about a learned route, among 100,000 of them in turn.
func BenchmarkDecide100kRoutes(b *testing.B) {
	for _, pools := range []int{1, 4, 100} {
		b.Run(fmt.Sprintf("%dpools", pools), func(b *testing.B) {
			target, _ := testTarget(testKernel())
			c := testConfig()
			c.Pools = benchPools(pools)
			target.Configure(c)
			prefixes := make([]netip.Prefix, 100_000)
			for i := range prefixes {
				a := netip.AddrFrom4([4]byte{30, byte(i % pools), byte(i >> 8), byte(i) & 0xc0})
				prefixes[i] = netip.PrefixFrom(a, 26)
			}
			s := &state{learned: []netip.Addr{addr("10.1.0.9")}, metric: 1024, extras: noExtras}
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				target.rules.decide(prefixes[i%len(prefixes)], s)
			}
		})
	}
}
