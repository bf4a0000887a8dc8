package bench

import (
	"testing"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

// BenchmarkListing measures how long manxctl and birdc take to list what a peer has sent, and how much memory the
// daemons need for it beyond that of the routes.
func BenchmarkListing(b *testing.B) {
	const routes = 500_000
	s := newSite(b)
	for _, sp := range speakers {
		list := func() (string, error) {
			if sp.name == "bird" {
				return s.node.Run("birdc", "-s", s.birdSocket(), "show", "route", "all", "protocol", "peer")
			}
			return s.node.Manxctl("routes", "--received-from", s.ToRs[0].Address(s.node).String(), "-o", "wide")
		}
		b.Run(sp.name, func(b *testing.B) {
			running := sp.start(s, b)
			defer running.stop()
			base := fibSize(running.pid)
			p := s.connect(b)
			defer p.Close()
			for all := lab.Prefixes(routes); len(all) > 0; all = all[min(perUpdate, len(all)):] {
				if err := p.Send(s.announce(all[:min(perUpdate, len(all))])); err != nil {
					b.Fatal(err)
				}
			}
			if err := waitFIB(running.pid, base, routes, 3*time.Minute); err != nil {
				b.Fatal(err)
			}
			before := statusMB(running.pid, "VmHWM")
			for b.Loop() {
				out, err := list()
				if err != nil || len(out) < routes*20 {
					b.Fatalf("%d bytes: %v", len(out), err)
				}
			}
			b.ReportMetric(statusMB(running.pid, "VmHWM")-before, "more-MB")
		})
		s.flush(b)
	}
}
