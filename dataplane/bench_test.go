package dataplane

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/locrib"
)

// blocks makes n different /26 prefixes.
func blocks(n int) []netip.Prefix {
	list := make([]netip.Prefix, n)
	for i := range list {
		v := uint32(20<<24) + uint32(i)<<6
		list[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), 26)
	}
	return list
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// report reports the figures of one run per route.
func report(b *testing.B, n int, wall, cpu time.Duration) {
	b.ReportMetric(float64(wall.Nanoseconds())/float64(n*b.N), "ns/route")
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(n*b.N), "cpu-ns/route")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkApply measures the netlink layer alone: many routes in one system call against one.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		for _, batch := range []int{1, n} {
			name := "batched"
			if batch == 1 {
				name = "single"
			}
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				var wall, used time.Duration
				for range b.N {
					h := newHost(b)
					c := h.open()
					ops := benchOps(b, c, n)
					start, before := time.Now(), cpu()
					for i := 0; i < n; i += batch {
						if errs := c.ApplyRoutes(ops[i : i+batch]); errs != nil {
							b.Fatal(errs)
						}
					}
					wall, used = wall+time.Since(start), used+cpu()-before
				}
				report(b, n, wall, used)
			})
		}
	}
}

func benchOps(b *testing.B, c *kernel.Conn, n int) []kernel.RouteOp {
	links, err := c.ListLinks()
	if err != nil {
		b.Fatal(err)
	}
	link := 0
	for _, l := range links {
		if l.Name == "eth0" {
			link = l.Index
		}
	}
	hops := []kernel.NextHop{{Gateway: netip.MustParseAddr("10.1.0.9"), Link: link}}
	ops := make([]kernel.RouteOp, n)
	for i, p := range blocks(n) {
		ops[i] = kernel.RouteOp{Verb: kernel.AddRoute, Route: kernel.Route{
			Dst: p, Metric: 1024, Protocol: kernel.ProtocolBIRD, Type: kernel.Unicast, NextHops: hops}}
	}
	return ops
}

// BenchmarkLearn measures an agent from learned paths to kernel routes, as the speaker feeds it.
func BenchmarkLearn(b *testing.B) {
	for _, n := range []int{1000, 10000, 100000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var wall, used time.Duration
			for range b.N {
				h := newHost(b)
				a, stop := h.agent()
				a.set(baseObjects())
				a.synced(true, true)
				settle(b, a)
				changes := make([]locrib.Route, n)
				paths := []locrib.Path{{NextHop: netip.MustParseAddr("10.1.0.9")}}
				for i, p := range blocks(n) {
					changes[i] = locrib.Route{Prefix: p, Paths: paths, Metric: 1024}
				}
				start, before := time.Now(), cpu()
				for i := 0; i < n; i += 500 {
					a.Learn(changes[i:min(i+500, n)])
				}
				for done := false; !done; {
					time.Sleep(time.Millisecond)
					a.mu.Lock()
					done = a.routes.Applied() >= n
					a.mu.Unlock()
				}
				wall, used = wall+time.Since(start), used+cpu()-before
				stop()
			}
			report(b, n, wall, used)
		})
	}
}
