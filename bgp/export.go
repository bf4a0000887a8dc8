package bgp

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Export decides whether a route is sent to a peer, in the order of calico/node: the filters of the session, and if
// none of their rules matches, the rules for every peer. A filter that accepts a route skips all the rest.
//
// It ignores the limits of BGP itself: routes of internal peers are not sent to one another (RFC 4456), nor those with
// NO_EXPORT or NO_ADVERTISE (RFC 1997).
func (d Desired) Export(s Session, c Candidate) Verdict {
	if v, ok := d.filtered(s, c, true); ok {
		return v
	}
	accept, rule := d.exportable(c)
	if c.Source == SourceOwn { // decided when it was originated; only the reason remains
		if accept == c.FilterOnly {
			accept, rule = !c.FilterOnly, "default: own route"
		}
		return Verdict{Accept: accept, Rule: rule, Route: c}
	}
	if accept {
		c = d.tag(c)
	}
	return Verdict{Accept: accept, Rule: rule, Route: c}
}

// Import decides whether a route of a peer is accepted: first the refusals, then the filters of the session. If no rule
// matches, the route is accepted, a default route too.
func (d Desired) Import(s Session, c Candidate) Verdict {
	if r := d.refuse(s, c.Prefix); r != nil {
		return Verdict{Rule: r.Reason, Route: c}
	}
	if v, ok := d.filtered(s, c, false); ok {
		return v
	}
	return Verdict{Accept: true, Rule: "default: every route is accepted", Route: c}
}

// exportable decides about routes that no filter decides about.
func (d Desired) exportable(c Candidate) (accept bool, rule string) {
	for _, p := range d.NoExportPrefixes {
		if contains(p, c.Prefix) && !slices.Contains(d.OwnBlocks, p) {
			return false, fmt.Sprintf("default: pool %s has disableBGPExport", p)
		}
	}
	for _, p := range d.OwnBlocks {
		switch {
		case p == c.Prefix && c.Source == SourceOwn:
			return true, fmt.Sprintf("default: own block %s", p)
		case p == c.Prefix:
			return false, fmt.Sprintf("default: own block %s, which no other speaker may announce", p)
		case contains(p, c.Prefix) && d.elevated(c):
			return true, fmt.Sprintf("default: priority %d, which is elevated, in own block %s",
				MaxPriority-c.LocalPref, p)
		case contains(p, c.Prefix):
			return false, fmt.Sprintf("default: hidden in own block %s", p)
		}
	}
	if p, ok := within(d.Services, c.Prefix); ok {
		return true, fmt.Sprintf("default: inside service range %s", p)
	}
	if p, ok := within(d.ExportPrefixes, c.Prefix); ok {
		return true, fmt.Sprintf("default: inside pool %s", p)
	}
	return false, "default: outside every IP pool"
}

// within finds the first prefix that contains p.
func within(list []netip.Prefix, p netip.Prefix) (netip.Prefix, bool) {
	for _, outer := range list {
		if contains(outer, p) {
			return outer, true
		}
	}
	return netip.Prefix{}, false
}

// elevated reports whether a route comes before the ordinary ones: that of a workload that is just being moved to or
// from another node.
func (d Desired) elevated(c Candidate) bool {
	return slices.Contains(d.Elevated[familyOf(c.Prefix.Addr())], MaxPriority-c.LocalPref)
}

// tag adds the communities of prefixAdvertisements.
func (d Desired) tag(c Candidate) Candidate {
	standard, large := tagging(d.Tags).of(c.Prefix)
	if len(standard) > 0 {
		c.Communities = union(c.Communities, standard, cmp.Compare)
	}
	if len(large) > 0 {
		c.LargeCommunities = union(c.LargeCommunities, large, compareLarge)
	}
	return c
}

// Candidate converts the origin for filters.
func (o Origin) Candidate() Candidate {
	return Candidate{
		Prefix: o.Prefix, Source: SourceOwn, Interface: o.Interface, LocalPref: o.LocalPref, FilterOnly: o.FilterOnly,
		Communities: o.Communities, LargeCommunities: o.LargeCommunities,
	}
}
