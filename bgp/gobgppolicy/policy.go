package gobgppolicy

import (
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/osrg/gobgp/v4/api"
	"google.golang.org/protobuf/proto"

	"github.com/manxnet/manx/bgp"
)

// GoBGP has one export and one import policy for all peers. The differences between peers are neighbour sets: sessions
// whose routes are decided alike form a group, and each statement that is not for all is guarded by the set of a group.
// The whole policy is always replaced at once, so that no route is ever decided by a part of it.
const (
	ExportPolicy = "manx-export"
	ImportPolicy = "manx-import"
)

// Policy is GoBGP's routing policy, and its part for each peer.
type Policy struct {
	Request  *api.SetPoliciesRequest
	Encoded  []byte                  // of Request, to compare
	Ranges   map[netip.Prefix]string // the decisions about learned routes inside of them
	Drain    bgp.Drain
	Groups   []*Group
	Excepted []netip.Prefix // prefixes of other refusals of outsiders; sorted
	Single   []netip.Prefix // prefixes that are refused one by one; sorted
	Watched  bool           // a rule refers to the interface that a learned route leaves by

	desired bgp.Desired
	groupOf []*Group // by session
}

// PeerPolicy changes exactly if routes that were decided before must be decided again for the peer.
type PeerPolicy struct {
	In, Out string                  // the statements about learned routes
	Own     map[netip.Prefix]string // the decision about each of our own
}

// Group is a set of sessions whose routes are decided alike.
type Group struct {
	Session  bgp.Session // any of them
	IPv6     bool
	Peers    []netip.Addr
	name     string
	external bool
	drained  bool          // the peers are drained: the routes of both directions are the last choice
	filters  []*bgp.Filter // those that sessions name and that exist, in order
	decided  PeerPolicy    // the statements for these peers
}

// policyBuilder turns a Desired into statements.
type policyBuilder struct {
	d          bgp.Desired
	interfaces map[netip.Addr]string // of next hops
	sets       map[string]*api.DefinedSet
	statements []*api.Statement
	seen       strings.Builder // the statements since the last call of since
	watched    bool
}

// Translate turns the rules about routes of d into a policy of GoBGP. It has no side effects. interfaces holds the
// interface of each known next hop.
func Translate(d bgp.Desired, interfaces map[netip.Addr]string) Policy {
	b := &policyBuilder{d: d, interfaces: interfaces, sets: map[string]*api.DefinedSet{}}
	p := Policy{Drain: d.Drain, desired: d}
	groups, groupOf := groupsOf(d)
	p.groupOf = groupOf
	exporting := b.exportStatements(groups)
	importing := b.importStatements(groups)
	p.Groups, p.Excepted, p.Single = groups, exceptions(d.Refusals), d.Refusals.Also()
	p.Ranges, p.Watched = rangesOf(d), b.watched
	p.Request = &api.SetPoliciesRequest{
		Policies: []*api.Policy{{Name: ExportPolicy, Statements: exporting},
			{Name: ImportPolicy, Statements: importing}},
	}
	for _, name := range slices.Sorted(maps.Keys(b.sets)) {
		p.Request.DefinedSets = append(p.Request.DefinedSets, b.sets[name])
	}
	// of valid text only, so that it cannot fail
	p.Encoded, _ = proto.MarshalOptions{Deterministic: true}.Marshal(p.Request)
	return p
}

// Peers returns the policy of each peer; sessions of a group with the same settings share it.
func (p Policy) Peers() map[netip.Addr]PeerPolicy {
	type kind struct {
		group    *Group
		nextHop  bgp.NextHopMode
		outsider bool
	}
	kinds := map[kind]PeerPolicy{}
	refused := RefusalsBySession(p.desired.Refusals)
	peers := make(map[netip.Addr]PeerPolicy, len(p.desired.Sessions))
	for i := range p.desired.Sessions {
		s := &p.desired.Sessions[i]
		k := kind{p.groupOf[i], s.NextHop, s.Outsider}
		mine, known := kinds[k]
		if !known {
			mine = k.group.decided
			mine.Out += string(s.NextHop)
			mine.In += refused(*s).Text
			if k.group.drained {
				mine.Out += "drained"
			}
			kinds[k] = mine
		}
		peers[PlainAddr(s.Address)] = mine
	}
	return peers
}

// groupsOf sorts sessions into groups, and returns the group of each session. The AS that a session uses for us counts,
// because GoBGP evaluates the export policy after it has put that AS into the path.
func groupsOf(d bgp.Desired) (groups []*Group, of []*Group) {
	filters := map[string]*bgp.Filter{}
	for i := range d.Filters {
		filters[d.Filters[i].Name] = &d.Filters[i]
	}
	type kind struct {
		ipv6    bool
		as      uint32 // of this side; 0: internal
		filters string
		drained bool
	}
	kinds, byName := map[kind]*Group{}, map[string]*Group{}
	of = make([]*Group, len(d.Sessions))
	for i := range d.Sessions {
		s := &d.Sessions[i]
		addr := PlainAddr(s.Address)
		if i > 0 && decidedAlike(&d.Sessions[i-1], s) { // as most of them are
			of[i] = of[i-1]
			of[i].Peers = append(of[i].Peers, addr)
			continue
		}
		k := kind{ipv6: addr.Is6(), filters: strings.Join(s.Filters, ","),
			drained: s.IsDrained()}
		if s.PeerAS != s.LocalAS {
			k.as = s.LocalAS
		}
		g := kinds[k]
		if g == nil {
			g = newGroup(s, filters)
			if same := byName[g.name]; same != nil {
				g = same
			}
			kinds[k], byName[g.name] = g, g
		}
		g.Peers = append(g.Peers, addr)
		of[i] = g
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		groups = append(groups, byName[name])
	}
	return groups, of
}

// decidedAlike reports whether two sessions are of one group for certain.
func decidedAlike(a, b *bgp.Session) bool {
	return a.LocalAS == b.LocalAS && a.PeerAS == b.PeerAS &&
		a.IsDrained() == b.IsDrained() && PlainAddr(a.Address).Is6() == PlainAddr(b.Address).Is6() &&
		slices.Equal(a.Filters, b.Filters)
}

func newGroup(s *bgp.Session, filters map[string]*bgp.Filter) *Group {
	g := &Group{Session: *s, IPv6: PlainAddr(s.Address).Is6(), external: s.PeerAS != s.LocalAS,
		drained: s.IsDrained()}
	for _, name := range s.Filters {
		if f := filters[name]; f != nil {
			g.filters = append(g.filters, f)
		}
	}
	g.name = groupName(g)
	return g
}

func groupName(g *Group) string {
	family, kind := "v4", "internal"
	if g.IPv6 {
		family = "v6"
	}
	if g.external {
		kind = fmt.Sprintf("external-AS%d", g.Session.LocalAS)
	}
	if g.drained {
		kind += "-drained"
	}
	names := make([]string, 0, len(g.filters))
	for _, f := range g.filters {
		names = append(names, f.Name)
	}
	return "manx-" + family + "-" + kind + ":" + strings.Join(names, ",")
}

// PlainAddr is the address of a peer as policies have it.
func PlainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Rules returns the rules of the group's filters, in the order of evaluation.
func (g *Group) Rules(export bool) []bgp.Rule {
	var rules []bgp.Rule
	for _, f := range g.filters {
		switch {
		case export && g.IPv6:
			rules = append(rules, f.ExportV6...)
		case export:
			rules = append(rules, f.ExportV4...)
		case g.IPv6:
			rules = append(rules, f.ImportV6...)
		default:
			rules = append(rules, f.ImportV4...)
		}
	}
	return rules
}

// neighbours is the set of some peers, of all with that name the same.
func (b *policyBuilder) neighbours(name string, peers []netip.Addr) *api.MatchSet {
	const kind = api.DefinedType_DEFINED_TYPE_NEIGHBOR
	if known := b.sets[setKey(kind, name)]; known != nil {
		return b.set(known)
	}
	return b.set(&api.DefinedSet{DefinedType: kind, Name: name, List: b.cover(peers)})
}

// cover returns the shortest prefixes that hold the peers and no peer of another session: GoBGP goes through the list
// of a set for every route and statement. Of the other peers only those right before and behind an address can keep its
// prefix from being shorter.
func (b *policyBuilder) cover(peers []netip.Addr) []string {
	inside := make(map[netip.Addr]bool, len(peers))
	for _, a := range peers {
		inside[a] = true
	}
	var others []netip.Addr
	for i := range b.d.Sessions {
		if a := PlainAddr(b.d.Sessions[i].Address); !inside[a] {
			others = append(others, a)
		}
	}
	slices.SortFunc(others, netip.Addr.Compare)
	set := map[netip.Prefix]bool{}
	for _, a := range peers {
		i, _ := slices.BinarySearchFunc(others, a, netip.Addr.Compare)
		length := 1
		for _, o := range others[max(0, i-1):min(len(others), i+1)] {
			if o.BitLen() == a.BitLen() {
				length = max(length, commonBits(a, o)+1)
			}
		}
		set[netip.PrefixFrom(a, length).Masked()] = true
	}
	list := make([]string, 0, len(set))
	for p := range set {
		list = append(list, p.String())
	}
	slices.Sort(list)
	return list
}

// commonBits returns the number of leading bits that two addresses of one family share.
func commonBits(a, b netip.Addr) int {
	x, y := a.As16(), b.As16()
	for i := range x {
		if d := x[i] ^ y[i]; d != 0 {
			return 8*i + bits.LeadingZeros8(d) - (128 - a.BitLen())
		}
	}
	return a.BitLen()
}

// set defines a set, once per name. No set is ever empty: an empty neighbour set would match every neighbour.
func (b *policyBuilder) set(s *api.DefinedSet) *api.MatchSet {
	b.sets[setKey(s.DefinedType, s.Name)] = s
	return &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: s.Name}
}

func setKey(kind api.DefinedType, name string) string { return fmt.Sprintf("%d %s", kind, name) }

func (b *policyBuilder) prefixes(name string, prefixes []netip.Prefix, exact bool) *api.MatchSet {
	s := &api.DefinedSet{DefinedType: api.DefinedType_DEFINED_TYPE_PREFIX, Name: name}
	for _, p := range prefixes {
		longest := p.Addr().BitLen()
		if exact {
			longest = p.Bits()
		}
		s.Prefixes = append(s.Prefixes, &api.Prefix{IpPrefix: p.Masked().String(), MaskLengthMin: uint32(p.Bits()),
			MaskLengthMax: uint32(longest)})
	}
	return b.set(s)
}

// append appends a statement; guard limits it to a group of neighbours.
func (b *policyBuilder) append(name string, guard *api.MatchSet, c *api.Conditions, a *api.Actions) {
	b.note(c)
	b.note(a)
	c = proto.Clone(c).(*api.Conditions)
	c.NeighborSet = guard
	b.statements = append(b.statements, &api.Statement{Name: fmt.Sprintf("%04d %s", len(b.statements), name),
		Conditions: c, Actions: a})
}

func (b *policyBuilder) note(m proto.Message) {
	text, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	fmt.Fprintf(&b.seen, "%d:%s", len(text), text)
}

// since returns the statements since its last call, without names and guards.
func (b *policyBuilder) since() string {
	defer b.seen.Reset()
	return b.seen.String()
}

// take ends a policy: statements are named with its direction, because names are unique over all policies.
func (b *policyBuilder) take(direction string) []*api.Statement {
	list := b.statements
	b.statements = nil
	for _, s := range list {
		s.Name = direction + " " + s.Name
	}
	return list
}
