package bgp

import (
	"cmp"
	"iter"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// Filter is a compiled BGPFilter. Rules are evaluated in order; the first that matches decides. If none matches, the
// next filter of the session is evaluated.
type Filter struct {
	Name                                   string
	ImportV4, ExportV4, ImportV6, ExportV6 []Rule
}

// Rule is one rule of a filter. All conditions that are set must hold; one without conditions matches everything.
type Rule struct {
	Name   string // for people: "BGPFilter/f1 exportV4[2]"
	Accept bool

	Prefix       *PrefixMatch
	RemotePeers  bool   // the route was learned by BGP
	Interface    string // shell pattern of the interface that the route leaves by
	PeerType     string // "eBGP", "iBGP" or "" for both
	Community    *uint32
	Large        *[3]uint32
	ASPathPrefix []uint32 // the AS path starts with it
	Priority     uint32   // LOCAL_PREF is MaxPriority - Priority; 0: any

	Operations []Operation // done in order before accepting
}

// PrefixMatch holds for prefixes inside CIDR whose length is Min to Max, or, with Not, for all others.
type PrefixMatch struct {
	CIDR     netip.Prefix
	Min, Max int
	Not      bool
}

// Operation changes a route. Exactly one field is set.
type Operation struct {
	AddCommunity  *uint32
	AddLarge      *[3]uint32
	PrependASPath []uint32 // the path starts with these afterwards, in this order
	SetPriority   uint32   // LOCAL_PREF becomes MaxPriority - SetPriority
}

// RouteSource is the origin of a route that may be exported.
type RouteSource string

const (
	SourceOwn      RouteSource = "own"
	SourceInternal RouteSource = "internal" // learned over iBGP
	SourceExternal RouteSource = "external" // learned over eBGP
)

// Candidate is a route as input to filters.
type Candidate struct {
	Prefix           netip.Prefix
	Source           RouteSource
	Interface        string
	Communities      []uint32
	LargeCommunities [][3]uint32
	ASPath           []uint32
	LocalPref        uint32
	FilterOnly       bool // as in Origin
}

// Verdict is the result of the evaluation of a candidate.
type Verdict struct {
	Accept bool
	Rule   string    // the rule that decided: the name of a filter's rule, or "default: inside pool 10.0.0.0/16"
	Route  Candidate // as changed by operations
}

// filtered evaluates the filters of a session in order; false if none of their rules matches.
func (d Desired) filtered(s Session, c Candidate, export bool) (Verdict, bool) {
	for r := range d.rules(&s, export) {
		if r.matches(s, c, export) {
			return r.verdict(c), true
		}
	}
	return Verdict{}, false
}

// rules yields the rules of a session's filters in the order of evaluation.
func (d Desired) rules(s *Session, export bool) iter.Seq[Rule] {
	return func(yield func(Rule) bool) {
		for _, name := range s.Filters {
			i, ok := slices.BinarySearchFunc(d.Filters, name, func(f Filter, name string) int {
				return strings.Compare(f.Name, name)
			})
			if !ok {
				continue
			}
			for _, r := range d.Filters[i].rules(s.Address.Unmap().Is6(), export) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

func (f Filter) rules(six, export bool) []Rule {
	switch {
	case six && export:
		return f.ExportV6
	case six:
		return f.ImportV6
	case export:
		return f.ExportV4
	}
	return f.ImportV4
}

// matches reports whether all conditions of the rule hold.
func (r Rule) matches(s Session, c Candidate, export bool) bool {
	return (r.Prefix == nil || r.Prefix.matches(c.Prefix)) &&
		(!r.RemotePeers || !export || c.Source != SourceOwn) &&
		(r.Interface == "" || matchInterface(r.Interface, c.Interface)) &&
		(r.PeerType == "" || (r.PeerType == model.FilterExternalPeers) == (s.PeerAS != s.LocalAS)) &&
		r.matchesCommunity(c) &&
		len(r.ASPathPrefix) <= len(c.ASPath) && slices.Equal(r.ASPathPrefix, c.ASPath[:len(r.ASPathPrefix)]) &&
		(r.Priority == 0 || c.LocalPref == MaxPriority-r.Priority)
}

// matchesCommunity matches communities that a peer or an import filter has put on the route. Filters do not see the
// communities of own routes, which come from prefixAdvertisements: calico/node adds them later.
func (r Rule) matchesCommunity(c Candidate) bool {
	switch {
	case r.Community == nil && r.Large == nil:
		return true
	case c.Source == SourceOwn:
		return false
	}
	return (r.Community == nil || slices.Contains(c.Communities, *r.Community)) &&
		(r.Large == nil || slices.Contains(c.LargeCommunities, *r.Large))
}

func (m PrefixMatch) matches(p netip.Prefix) bool {
	return (contains(m.CIDR, p) && m.Min <= p.Bits() && p.Bits() <= m.Max) != m.Not
}

// matchInterface is false for a route whose interface is not known.
func matchInterface(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return ok && err == nil && name != ""
}

func (r Rule) verdict(c Candidate) Verdict {
	if !r.Accept {
		return Verdict{Rule: r.Name + " rejects", Route: c}
	}
	for _, o := range r.Operations {
		c = o.apply(c)
	}
	return Verdict{Accept: true, Rule: r.Name + " accepts", Route: c}
}

// apply changes a copy: the lists of a candidate may be shared.
func (o Operation) apply(c Candidate) Candidate {
	switch {
	case o.AddCommunity != nil:
		c.Communities = union(c.Communities, []uint32{*o.AddCommunity}, cmp.Compare)
	case o.AddLarge != nil:
		c.LargeCommunities = union(c.LargeCommunities, [][3]uint32{*o.AddLarge}, compareLarge)
	case len(o.PrependASPath) > 0:
		c.ASPath = slices.Concat(o.PrependASPath, c.ASPath)
	case o.SetPriority != 0:
		c.LocalPref = MaxPriority - o.SetPriority
	}
	return c
}

// union makes a new list, sorted and without duplicates.
func union[T comparable](a, b []T, compare func(T, T) int) []T {
	all := slices.Concat(a, b)
	slices.SortFunc(all, compare)
	return slices.Compact(all)
}

func compareLarge(a, b [3]uint32) int { return slices.Compare(a[:], b[:]) }
