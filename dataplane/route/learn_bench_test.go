package route

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/kerneltest"
	"github.com/manxnet/manx/dataplane/locrib"
)

// quietKernel accepts every change of a route and stores none.
type quietKernel struct{ *kerneltest.Kernel }

func (quietKernel) ApplyRoutes([]kernel.RouteOp) []error { return nil }

// BenchmarkLearn100k measures the cost of a learned route from BGP's decision to the kernel's queue, and the memory
// kept.
func BenchmarkLearn100k(b *testing.B) {
	const n = 100_000
	b.ReportAllocs()
	changes := make([]locrib.Route, n)
	paths := []locrib.Path{{NextHop: addr("10.1.0.9")}}
	for i := range changes {
		v := uint32(20<<24) + uint32(i)<<6
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), 26)
		changes[i] = locrib.Route{Prefix: p, Paths: paths, Metric: 1024}
	}
	var kept uint64
	for range b.N {
		b.StopTimer()
		target := New(quietKernel{testKernel()}, time.Now)
		target.Configure(testConfig())
		_, _, _ = target.Flush()
		before := heap()
		b.StartTimer()
		target.Learn(changes)
		if _, failures, err := target.Flush(); failures > 0 || err != nil {
			b.Fatal(failures, err)
		}
		b.StopTimer()
		kept += heap() - before
		runtime.KeepAlive(target)
		b.StartTimer()
	}
	b.ReportMetric(float64(kept)/float64(n*b.N), "kept-B/route")
}

// heap is the number of bytes in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
