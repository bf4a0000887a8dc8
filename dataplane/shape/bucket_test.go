package shape

import (
	"math"
	"testing"

	"github.com/manxnet/manx/dataplane/kernel/tc"
)

func TestBuckets(t *testing.T) {
	const mtu = 1500
	for name, c := range map[string]struct {
		limit limit
		want  tc.TokenBucket
	}{
		// 100 kB at 1.25 MB/s take 80 ms: 1,250,000 ticks of 64 ns. 25 ms more are 31,250 bytes.
		"rate and burst": {limit{Bandwidth: 10e6, Burst: 800e3}, tc.TokenBucket{Rate: 1_250_000, Buffer: 1_250_000,
			Limit: 131_250}},
		"burst by default": {limit{Bandwidth: 1e9},
			tc.TokenBucket{Rate: 125e6, Buffer: 67_108_864, Limit: 1<<29 + 3_125_000}},
		"no less than a packet": {limit{Bandwidth: 10e6, Burst: 8}, tc.TokenBucket{Rate: 1_250_000, Buffer: 18_925,
			Limit: 1514 + 31_250}},
		"a bucket of a packet at a high rate is rounded up": {limit{Bandwidth: 100e9, Burst: 1000},
			tc.TokenBucket{Rate: 12_500_000_000, Buffer: 2, Limit: 312_501_514}},
		"as slow as can be, and full": {limit{Bandwidth: 1000}, tc.TokenBucket{Rate: 125, Buffer: math.MaxUint32,
			Limit: 1<<29 + 3}},
		"as fast as can be": {limit{Bandwidth: 1e15, Burst: 34359738360},
			tc.TokenBucket{Rate: 125e12, Buffer: 537, Limit: math.MaxUint32}},
		"peak rate": {limit{Bandwidth: 10e6, Burst: 800e3, PeakRate: 20e6, MinBurst: 5000},
			tc.TokenBucket{Rate: 1_250_000, Buffer: 1_250_000, PeakRate: 2_500_000, PeakBuffer: 31_250,
				Limit: 67_500}},
		"peak rate by the packet": {limit{Bandwidth: 10e6, Burst: 800e3, PeakRate: 20e6},
			tc.TokenBucket{Rate: 1_250_000, Buffer: 1_250_000, PeakRate: 2_500_000, PeakBuffer: 9463,
				Limit: 64_014}},
		"a useless peak rate": {limit{Bandwidth: 10e6, Burst: 800e3, PeakRate: 10e6, MinBurst: 5000},
			tc.TokenBucket{Rate: 1_250_000, Buffer: 1_250_000, Limit: 131_250}},
		"less than a byte": {limit{Bandwidth: 1, Burst: 12112}, tc.TokenBucket{Rate: 1, Buffer: math.MaxUint32,
			Limit: 1514}},
	} {
		if have := c.limit.bucket(mtu); have != c.want {
			t.Errorf("%s: %+v, want %+v", name, have, c.want)
		}
	}
}
