package speaker

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/manxnet/manx/bgp"
)

// Service addresses are announced and passed on, several nodes may announce the same, and no kernel gets them.
func TestServicesAreForOthers(t *testing.T) {
	t.Parallel()
	services, single := pfx("10.96.0.0/12"), pfx("198.51.100.20/32")
	const pref = bgp.MaxPriority - bgp.NormalPriority
	s, d, in, out := exportLab(t, "127.0.1.90", "127.0.1.91", func(d *bgp.Desired) {
		d.Originated = []bgp.Origin{{Prefix: services, LocalPref: pref, Shared: true},
			{Prefix: single, LocalPref: pref, Shared: true}}
		d.ExportPrefixes = append(d.ExportPrefixes, services, single)
		d.NoInstall = []netip.Prefix{services}
	})
	in.send(update("10.0.0.90", 0, pref, services))
	// preferred to our own: it reaches the table of learned routes
	in.send(update("10.0.0.90", 0, bgp.MaxPriority, single))
	in.send(update("10.0.0.90", 0, pref, pfx("10.96.0.31/32")))
	in.send(update("10.0.0.90", 0, pref, pfx("10.244.1.0/26"))) // the last one: earlier ones have been decided

	for _, p := range []netip.Prefix{services, single, pfx("10.96.0.31/32"), pfx("10.244.1.0/26")} {
		out.await("route "+p.String(), func() bool { return out.routes[p] != nil })
	}
	table := routeTable{}
	installed := func(want ...string) func() bool {
		return func() bool {
			var got []string
			for p, r := range table {
				if len(r.Paths) > 0 {
					got = append(got, p.String())
				}
			}
			slices.Sort(got)
			return slices.Equal(got, want)
		}
	}
	awaitRoutes(t, s, table, "the route of pods alone", installed("10.244.1.0/26"))
	if r := append(s.Rejected(), s.readConflicts(s.current())...); len(r) > 0 {
		t.Errorf("what other nodes announce of services is no fault: %v", r)
	}

	d.NoInstall, d.Originated = nil, nil
	mustSet(t, s, d)
	awaitRoutes(t, s, table, "all, as they are no services any more",
		installed("10.244.1.0/26", "10.96.0.0/12", "10.96.0.31/32", "198.51.100.20/32"))
	d.NoInstall = []netip.Prefix{services}
	mustSet(t, s, d)
	awaitRoutes(t, s, table, "routes inside services to go", installed("10.244.1.0/26", "198.51.100.20/32"))
	if in.isClosed() || out.isClosed() {
		t.Error("a change of services ended a session")
	}
}
