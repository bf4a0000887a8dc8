package speaker

import (
	"slices"

	"github.com/manxnet/manx/bgp"
)

func oracleGroup(d bgp.Desired, s bgp.Session) *group {
	d.Sessions = []bgp.Session{s}
	return groupsOf(d)[0]
}

func oracleExport(d bgp.Desired, s bgp.Session, c bgp.Candidate) bgp.Verdict {
	g := oracleGroup(d, s)
	v := exportVerdict(d, g, c)
	switch d.Drain {
	case bgp.DrainWithdrawn:
		v.Accept = false
	case bgp.DrainDraining:
		v.Route.LocalPref = 1
		if c.Source == bgp.SourceOwn {
			v.Route.LocalPref = 0
		}
		if !slices.Contains(v.Route.Communities, gracefulShutdown) {
			v.Route.Communities = append(slices.Clone(v.Route.Communities), gracefulShutdown)
		}
	}
	return v
}

func oracleImport(d bgp.Desired, s bgp.Session, c bgp.Candidate) bgp.Verdict {
	g := oracleGroup(d, s)
	leaving := g.external && slices.Contains(c.Communities, gracefulShutdown)
	v := evaluate(g, g.rules(false), c, bgp.Verdict{Accept: true, Route: c})
	if leaving {
		v.Route.LocalPref = 1
	}
	return v
}
