package speaker

import (
	"net/netip"
	"path"
	"slices"

	"github.com/manxnet/manx/bgp"
)

func exportVerdict(d bgp.Desired, g *group, c bgp.Candidate) bgp.Verdict {
	within := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Bits() <= c.Prefix.Bits() && p.Contains(c.Prefix.Addr()) })
	}
	otherwise := bgp.Verdict{Accept: within(d.ExportPrefixes) && !within(d.NoExportPrefixes), Route: c}
	if c.Source == bgp.SourceOwn {
		otherwise.Accept = !c.FilterOnly
	}
	return evaluate(g, g.rules(true), c, otherwise)
}

func evaluate(g *group, rules []bgp.Rule, c bgp.Candidate, otherwise bgp.Verdict) bgp.Verdict {
	for _, r := range rules {
		if !matches(g, r, c) {
			continue
		}
		v := bgp.Verdict{Accept: r.Accept, Rule: r.Name, Route: c}
		for _, op := range r.Operations {
			switch {
			case op.AddCommunity != nil:
				if !slices.Contains(v.Route.Communities, *op.AddCommunity) {
					v.Route.Communities = append(slices.Clone(v.Route.Communities), *op.AddCommunity)
				}
			case op.AddLarge != nil:
				if !slices.Contains(v.Route.LargeCommunities, *op.AddLarge) {
					v.Route.LargeCommunities = append(slices.Clone(v.Route.LargeCommunities), *op.AddLarge)
				}
			case op.SetPriority != 0:
				v.Route.LocalPref = bgp.MaxPriority - op.SetPriority
			default:
				v.Route.ASPath = slices.Concat(op.PrependASPath, v.Route.ASPath)
			}
		}
		return v
	}
	return otherwise
}

func matches(g *group, r bgp.Rule, c bgp.Candidate) bool {
	iface, _ := path.Match(r.Interface, c.Interface)
	switch {
	case r.PeerType == "eBGP" && !g.external, r.PeerType == "iBGP" && g.external,
		r.RemotePeers && c.Source == bgp.SourceOwn,
		r.Interface != "" && (!iface || c.Interface == ""),
		r.Community != nil && !slices.Contains(c.Communities, *r.Community),
		r.Large != nil && !slices.Contains(c.LargeCommunities, *r.Large),
		r.Priority != 0 && c.LocalPref != bgp.MaxPriority-r.Priority,
		len(r.ASPathPrefix) > len(c.ASPath) || !slices.Equal(r.ASPathPrefix, c.ASPath[:len(r.ASPathPrefix)]):
		return false
	case r.Prefix == nil:
		return true
	}
	m := r.Prefix
	inside := m.CIDR.Contains(c.Prefix.Addr()) && m.CIDR.Bits() <= c.Prefix.Bits() && m.Min <= c.Prefix.Bits() && c.Prefix.Bits() <= m.Max
	return inside != m.Not
}
