package speaker

import (
	"slices"

	"github.com/manxnet/manx/bgp"
)

// wantExport is what bgp.Desired says, on a node that may be drained.
func wantExport(d bgp.Desired, s bgp.Session, c bgp.Candidate) bgp.Verdict {
	v := d.Export(s, c)
	switch d.Drain {
	case bgp.DrainWithdrawn:
		v.Accept = false
	case bgp.DrainDraining:
		v.Route.LocalPref = lowestLocalPref
		if c.Source == bgp.SourceOwn {
			v.Route.LocalPref = 0
		}
		if !slices.Contains(v.Route.Communities, gracefulShutdown) {
			v.Route.Communities = append(slices.Clone(v.Route.Communities), gracefulShutdown)
		}
	}
	return v
}

// wantImport is what bgp.Desired says, and RFC 8326.
func wantImport(d bgp.Desired, s bgp.Session, c bgp.Candidate) bgp.Verdict {
	v := d.Import(s, c)
	if s.PeerAS != s.LocalAS && slices.Contains(c.Communities, gracefulShutdown) {
		v.Route.LocalPref = lowestLocalPref
	}
	return v
}
