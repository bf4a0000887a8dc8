package speaker

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp"
)

// benchFilters are n filters with two rules each, none of which matches a route of the benchmark.
func benchFilters(n int) (filters []bgp.Filter, names []string) {
	for i := range n {
		f := bgp.Filter{Name: fmt.Sprintf("f%03d", i)}
		f.ExportV4 = []bgp.Rule{
			{Name: f.Name + " 0", Prefix: &bgp.PrefixMatch{
				CIDR: netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(i), 0, 0}), 16), Min: 16, Max: 32}},
			{Name: f.Name + " 1", Accept: true, Community: new(uint32(65000<<16 | i))},
		}
		filters, names = append(filters, f), append(names, f.Name)
	}
	return filters, names
}

// BenchmarkFilters measures the times of 400 learned prefixes to 100 peers that list 0, 10 and 100 filters, and of a
// change of one filter.
func BenchmarkFilters(b *testing.B) {
	prefixes := manyPrefixes(400)
	for _, n := range []int{0, 10, 100} {
		b.Run(fmt.Sprintf("filters=%d", n), func(b *testing.B) {
			s, d := testSpeaker(b, Config{Logger: zap.NewNop()})
			d.ExportPrefixes = []netip.Prefix{pfx("0.0.0.0/0")}
			var names []string
			d.Filters, names = benchFilters(n)
			d.Sessions = []bgp.Session{passive("127.0.3.1")}
			for i := range 100 {
				session := passive(fmt.Sprintf("127.0.4.%d", i+1))
				session.PeerAS, session.Filters = 64600, names
				d.Sessions = append(d.Sessions, session)
			}
			mustSet(b, s, d)
			in := dialFake(b, "127.0.3.1", listenOf(d), fakeOptions{as: 64512, id: "10.99.8.1"})
			var out []*fakePeer
			for i, session := range d.Sessions[1:] {
				out = append(out, dialFake(b, session.Address.String(), listenOf(d),
					fakeOptions{as: 64600, id: fmt.Sprintf("10.99.9.%d", i+1)}))
			}
			have := func(n int) {
				for _, p := range out {
					p.await(fmt.Sprint(n, " routes"), func() bool { return len(p.routes) == n })
				}
			}
			var spread, change time.Duration
			for b.Loop() {
				start := time.Now()
				in.send(update("10.0.0.70", 0, 100, prefixes...))
				have(400)
				spread += time.Since(start)

				if n > 0 {
					start = time.Now()
					changed := d
					changed.Filters = slices.Clone(d.Filters)
					changed.Filters[n-1].ExportV4 = []bgp.Rule{
						{Name: "changed", Prefix: &bgp.PrefixMatch{CIDR: prefixes[0], Min: 26, Max: 26}}}
					mustSet(b, s, changed)
					have(399)
					change += time.Since(start)
					mustSet(b, s, d)
					have(400)
				}
				in.send(withdrawal(prefixes...))
				have(0)
			}
			b.ReportMetric(spread.Seconds()*1000/float64(b.N), "ms/spread")
			b.ReportMetric(change.Seconds()*1000/float64(b.N), "ms/change")
		})
	}
}
