package bench

import (
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

const perUpdate = 500

// BenchmarkIngest sends n routes over one session, eBGP or iBGP, and waits until the kernel has them all. Manx and BIRD
// run in turns, so that other load of the machine affects both.
func BenchmarkIngest(b *testing.B) {
	for _, c := range []struct {
		n    int
		as   uint32 // the peer's
		name string
	}{
		{1_000, peerAS, "1000"}, {10_000, peerAS, "10000"}, {100_000, peerAS, "100000"}, {500_000, peerAS, "500000"},
		{100_000, nodeAS, "100000-iBGP"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newSite(b)
			s.as = c.as
			sum := map[string]*ingest{"manx": {}, "bird": {}}
			for range b.N {
				for _, sp := range speakers {
					r := measureIngest(b, s, sp.start, c.n)
					t := sum[sp.name]
					t.wall, t.cpu, t.peak = t.wall+r.wall, t.cpu+r.cpu, max(t.peak, r.peak)
				}
			}
			reportBoth(b, sum)
		})
	}
}

// reportBoth reports the means of both speakers and their ratios.
func reportBoth(b *testing.B, sum map[string]*ingest) {
	per := float64(b.N) * 1e6
	for name, t := range sum {
		b.ReportMetric(float64(t.wall)/per, name+"-ms")
		b.ReportMetric(float64(t.cpu)/per, name+"-cpu-ms")
		b.ReportMetric(t.peak, name+"-peak-MB")
	}
	b.ReportMetric(float64(sum["manx"].wall)/float64(sum["bird"].wall), "wall-ratio")
	b.ReportMetric(float64(sum["manx"].cpu)/float64(sum["bird"].cpu), "cpu-ratio")
	b.ReportMetric(0, "ns/op")
}

type ingest struct {
	wall, cpu time.Duration
	peak      float64 // MB
}

func measureIngest(b *testing.B, s *site, start func(*site, testing.TB) speaker, n int) ingest {
	b.Helper()
	sp := start(s, b)
	defer func() {
		sp.stop()
		s.flush(b)
	}()
	p := s.connect(b)
	defer p.Close()
	time.Sleep(500 * time.Millisecond) // let the effects of the handshake settle
	var updates [][]byte
	for list := lab.Prefixes(n); len(list) > 0; list = list[min(perUpdate, len(list)):] {
		updates = append(updates, s.announce(list[:min(perUpdate, len(list))]))
	}
	base, cpu0, t0 := fibSize(sp.pid), cpu(sp.pid), time.Now()
	for _, u := range updates {
		if err := p.Send(u); err != nil {
			b.Fatalf("%s: %v", sp.name, err)
		}
	}
	if err := waitFIB(sp.pid, base, n, 3*time.Minute); err != nil {
		b.Fatalf("%s: %v", sp.name, err)
	}
	return ingest{time.Since(t0), cpu(sp.pid) - cpu0, statusMB(sp.pid, "VmHWM")}
}
