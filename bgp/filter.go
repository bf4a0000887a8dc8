package bgp

import "net/netip"

// Filter is a BGPFilter made ready for use. Rules are tried in order; the first that matches decides, and if none does,
// the next filter of the session is asked.
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

// RouteSource tells where a route that may be exported comes from.
type RouteSource string

const (
	SourceOwn      RouteSource = "own"
	SourceInternal RouteSource = "internal" // learned over iBGP
	SourceExternal RouteSource = "external" // learned over eBGP
)

// Candidate is a route as filters see it.
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

// Verdict is what becomes of a candidate.
type Verdict struct {
	Accept bool
	Rule   string    // what decided, in words: the name of a filter's rule, or "default: inside pool 10.0.0.0/16"
	Route  Candidate // as changed by operations
}
