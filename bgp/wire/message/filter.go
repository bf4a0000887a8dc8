package message

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// Filter checks the UPDATEs that one peer sends. It changes those that the speaker must not get as they are, and never
// makes one longer.
type Filter struct {
	V6       bool
	Family   bool       // the session carries routes of its family
	Paths    bool       // with identifiers (RFC 7911)
	External bool       // the peer is in another AS
	Loopback bool       // both ends are on loopback addresses, so that next hops may be
	Width    int        // octets of an AS number in the peer's messages
	Growth   func() int // by how many bytes the attributes may grow before the route is passed on

	parts   parts // of the UPDATE under way
	scratch []byte
	listed  []Route
}

// Route is a route in an UPDATE of a peer.
type Route struct {
	Prefix netip.Prefix
	ID     uint32 // RFC 7911
}

// Finding is the result of a Filter.
type Finding struct {
	Message   []byte // for the speaker; nil: nothing is left
	EndOfRIB  bool
	NextHop   netip.Addr
	Withdrawn []byte // the encoded routes, also those of routes that became withdrawals
	Announced []byte
	Mends     []Mend
	Reset     *Notification // the session must end with it
	Why       string        // of the reset
}

// Mend is a change of a received UPDATE.
type Mend struct {
	Kind   Kind
	Detail string
	First  netip.Prefix // of its routes; invalid if it has none
	Routes int          // in the UPDATE
}

// Kind is that of a Mend.
type Kind int

const (
	TooLong           Kind = iota // its routes became withdrawals: no peer could be sent them
	TreatedAsWithdraw             // its routes became withdrawals, because an attribute is malformed (RFC 7606)
	Discarded                     // an attribute was removed (RFC 7606)
	OtherFamily                   // routes of an address family that the session does not carry were removed
)

// both joins two lists of routes, of which one is nearly always empty.
func both(a, b []byte) []byte {
	switch {
	case len(a) == 0:
		return b
	case len(b) == 0:
		return a
	}
	return append(bytes.Clone(a), b...)
}

// endSession is for faults after which the session must end (RFC 4271 section 6.3, RFC 7606 section 3).
func endSession(sub uint8, data []byte, why string) Finding {
	return Finding{Reset: &Notification{codeUpdate, sub, data}, Why: why}
}

// parts is an UPDATE while it is checked.
type parts struct {
	update
	reach, unreach   multiprotocol
	hasReach, hasUn  bool
	hasNextHop       bool
	length           int // of the attributes that would be passed on
	pathLength       int // of AS_PATH
	kept             []byte
	changed          bool
	withdraw, remove string // why routes become withdrawals, and why an attribute was removed
	other            string // the family that was removed
	seen             [256]bool
	nextHop          netip.Addr
	reset            Finding // if its reset is set
}

// Check looks at an UPDATE. What GoBGP gets of it has no fault in the parts that this node uses: GoBGP skips its own
// checks of a message in which it has discarded an attribute.
func (f *Filter) Check(m []byte) Finding {
	u, ok := splitUpdate(m)
	if !ok {
		return endSession(subAttributeList, nil, "the lengths in an UPDATE do not fit")
	}
	f.parts = parts{update: u, kept: f.parts.kept[:0]}
	p := &f.parts
	if !attributes(u.attrs, func(a attribute) { f.attribute(p, a) }) {
		if f.V6 || p.hasReach || p.hasUn { // routes may be in the part that cannot be read (RFC 7606 section 4)
			return endSession(subAttributeList, nil, "the attributes of an UPDATE do not fit their lengths")
		}
		p.changed, p.withdraw = true, "its attributes do not fit their lengths"
	}
	if p.reset.Reset != nil {
		return p.reset
	}
	f.ownFamily(p)
	announced, withdrawn := both(p.nlri, p.reach.nlri), both(p.withdrawn, p.unreach.nlri)
	first, count := netip.Prefix{}, 0
	note := func(r route, _ []byte) {
		if count++; count == 1 {
			first = r.prefix(f.V6)
		}
	}
	for _, list := range [][]byte{p.nlri, p.withdrawn, p.reach.nlri, p.unreach.nlri} {
		if !routes(list, f.V6, f.Paths, note) {
			return endSession(subNetworkField, nil, "a prefix in an UPDATE is malformed")
		}
	}
	found := Finding{NextHop: p.nextHop, Announced: announced, Withdrawn: withdrawn}
	mend := func(kind Kind, detail string) {
		found.Mends = append(found.Mends, Mend{Kind: kind, Detail: detail, First: first, Routes: count})
	}
	if p.other != "" {
		mend(OtherFamily, p.other)
	}
	if p.remove != "" {
		mend(Discarded, p.remove)
	}
	if len(announced) > 0 {
		f.missing(p)
		if p.withdraw == "" {
			if words := f.tooLong(p); words != "" {
				mend(TooLong, words)
				return f.asWithdrawal(p, found)
			}
		}
		if p.withdraw != "" {
			mend(TreatedAsWithdraw, p.withdraw)
			return f.asWithdrawal(p, found)
		}
	}
	found.Message = m
	if p.changed {
		found.Message = f.rebuild(p)
	}
	if found.Message != nil && len(announced) == 0 && len(withdrawn) == 0 {
		found.EndOfRIB = isEndOfRIB(found.Message, f.V6)
	}
	return found
}

// attribute looks at one attribute, and keeps or removes it.
func (f *Filter) attribute(p *parts, a attribute) {
	if p.seen[a.kind] && (a.kind == bgp.BGP_ATTR_TYPE_MP_REACH_NLRI || a.kind == bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI) {
		p.reset = endSession(subAttributeList, nil, fmt.Sprintf("attribute %s is there twice", nameOf(a.kind)))
		return
	}
	again := p.seen[a.kind]
	p.seen[a.kind] = true
	switch a.kind {
	case bgp.BGP_ATTR_TYPE_MP_REACH_NLRI, bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI:
		f.multiprotocol(p, a)
		return
	}
	_, known := bgp.PathAttrFlags[a.kind]
	malformed := a.check(f.Width, f.External, f.Loopback)
	switch {
	case f.External && internalOnly(a.kind), a.kind == bgp.BGP_ATTR_TYPE_AIGP, f.Width == 4 && fourOctet(a.kind):
		p.changed = true
		return
	case a.kind == bgp.BGP_ATTR_TYPE_NEXT_HOP && len(p.nlri) == 0: // RFC 4760 section 3
		p.changed = true
		return
	case a.kind == bgp.BGP_ATTR_TYPE_AS4_PATH && f.sets(p):
		p.changed, p.remove = true, "AS_PATH or AS4_PATH has a set, and GoBGP cannot merge the two"
		return
	case again: // RFC 7606 section 3 (g): all but the first are removed
		p.changed, p.remove = true, fmt.Sprintf("attribute %s is there twice", nameOf(a.kind))
		return
	case malformed != "" && discarded(a.kind):
		p.changed, p.remove = true, malformed
		return
	case malformed != "":
		p.changed, p.withdraw = true, malformed
		return
	case !known && a.flags&byte(bgp.BGP_ATTR_FLAG_OPTIONAL) == 0:
		p.reset = endSession(subUnknown, bytes.Clone(a.whole),
			fmt.Sprintf("attribute %s is unknown and well-known", nameOf(a.kind)))
		return
	case !known && a.flags&byte(bgp.BGP_ATTR_FLAG_TRANSITIVE) != 0:
		a.whole[0] |= byte(bgp.BGP_ATTR_FLAG_PARTIAL) // RFC 4271 section 5
	case a.kind == bgp.BGP_ATTR_TYPE_AS_PATH:
		p.pathLength = len(a.value)
	case a.kind == bgp.BGP_ATTR_TYPE_NEXT_HOP:
		p.hasNextHop = true
		p.nextHop = netip.AddrFrom4([4]byte(a.value))
	}
	p.length += len(a.whole)
	p.kept = append(p.kept, a.whole...)
}

// sets reports whether a path of a peer without 4-octet AS numbers has an AS_SET.
func (f *Filter) sets(p *parts) (found bool) {
	attributes(p.attrs, func(a attribute) {
		width := 0
		switch a.kind {
		case bgp.BGP_ATTR_TYPE_AS_PATH:
			width = f.Width
		case bgp.BGP_ATTR_TYPE_AS4_PATH:
			width = 4
		default:
			return
		}
		asPath(a.value, width, func(segment byte, _ uint32) {
			found = found || segment != bgp.BGP_ASPATH_ATTR_TYPE_SEQ
		})
	})
	return found
}

// multiprotocol keeps the routes of the session's family, and removes those of others.
func (f *Filter) multiprotocol(p *parts, a attribute) {
	read := readUnreach
	if a.kind == bgp.BGP_ATTR_TYPE_MP_REACH_NLRI {
		read = readReach
	}
	m, ok := read(a.value)
	ok = ok && a.check(f.Width, f.External, f.Loopback) == ""
	switch {
	case !ok:
		p.reset = endSession(subOptional, bytes.Clone(a.whole),
			fmt.Sprintf("attribute %s is malformed", nameOf(a.kind)))
		return
	case m.family != f.own() || !f.Family:
		p.changed, p.other = true, fmt.Sprintf("it has routes of %s", m.family)
		return
	case a.kind == bgp.BGP_ATTR_TYPE_MP_REACH_NLRI:
		p.reach, p.hasReach = m, true
		n := len(m.nextHop)
		if f.V6 && n != 16 && n != 32 || !f.V6 && n != 4 {
			p.changed, p.withdraw = true, fmt.Sprintf("the next hop in attribute %s has length %d", nameOf(a.kind), n)
		} else {
			p.nextHop, _ = netip.AddrFromSlice(m.nextHop[:min(n, 16)])
		}
	default:
		p.unreach, p.hasUn = m, true
	}
	p.kept = append(p.kept, a.whole...)
}

func (f *Filter) own() bgp.Family {
	if f.V6 {
		return bgp.RF_IPv6_UC
	}
	return bgp.RF_IPv4_UC
}

// ownFamily removes IPv4 routes from a session that does not carry them.
func (f *Filter) ownFamily(p *parts) {
	if f.Family && !f.V6 {
		return
	}
	if len(p.withdrawn)+len(p.nlri) > 0 {
		p.other = "it has routes of ipv4-unicast"
	}
	if len(p.withdrawn)+len(p.nlri)+len(p.attrs) == 0 {
		p.other = "it is the End-of-RIB of ipv4-unicast"
	}
	if p.other != "" {
		p.withdrawn, p.nlri, p.changed = nil, nil, true
	}
}

// missing finds out whether a mandatory attribute is missing (RFC 7606 section 3 (d)).
func (f *Filter) missing(p *parts) {
	for _, kind := range []bgp.BGPAttrType{bgp.BGP_ATTR_TYPE_ORIGIN, bgp.BGP_ATTR_TYPE_AS_PATH,
		bgp.BGP_ATTR_TYPE_NEXT_HOP} {
		if !p.seen[kind] && (kind != bgp.BGP_ATTR_TYPE_NEXT_HOP || len(p.nlri) > 0) {
			p.withdraw = fmt.Sprintf("attribute %s is missing", nameOf(kind))
		}
	}
}

// Lengths of the longest announcement of one route, without the attributes that are passed on: header, two lengths, and
// one route with its identifier; IPv6 routes are in an attribute with two next hops (RFC 2545), which replaces another.
const (
	fixedLength = headerLength + 2 + 2
	longestV4   = 4 + 1 + 4
	longestV6   = 4 + 3 + 1 + 32 + 1 + 4 + 1 + 16
)

// tooLong returns why routes could not be passed on to a peer in a message; empty: they can. A peer that has no
// 4-octet AS numbers gets the path twice, as AS_PATH and as AS4_PATH (RFC 6793 section 4.2.2).
func (f *Filter) tooLong(p *parts) string {
	need := fixedLength + p.length + f.Growth()
	switch {
	case f.V6:
		need += longestV6
	case !p.hasNextHop:
		need += longestV4 + 7
	default:
		need += longestV4
	}
	if f.Width == 4 {
		need += p.pathLength/2 + 4
	} else {
		need += 2*p.pathLength + 4 // it becomes one of four octets each, and such peers get AS4_PATH beside it
	}
	if need <= longestLength {
		return ""
	}
	return fmt.Sprintf("its attributes take %d bytes; passed on, a message with it could take %d bytes, of at most %d",
		p.length, need, longestLength)
}

// asWithdrawal replaces announced routes by their withdrawals.
func (f *Filter) asWithdrawal(p *parts, found Finding) Finding {
	u := update{}
	var lists []byte
	if f.V6 {
		u.attrs = appendUnreach(nil, true, p.unreach.nlri, p.reach.nlri)
		lists = u.attrs[7:]
	} else {
		u.withdrawn = append(append(append(append([]byte(nil), p.withdrawn...), p.nlri...), p.unreach.nlri...),
			p.reach.nlri...)
		lists = u.withdrawn
	}
	f.scratch = appendUpdate(f.scratch[:0], u)
	found.Message, found.Announced, found.Withdrawn = f.scratch, nil, lists
	return found
}

// rebuild returns the message without the parts that were removed, nil if nothing is left.
func (f *Filter) rebuild(p *parts) []byte {
	if len(p.withdrawn)+len(p.nlri) == 0 && !p.hasReach && !p.hasUn {
		return nil // an empty UPDATE would be an End-of-RIB
	}
	f.scratch = appendUpdate(f.scratch[:0], update{p.withdrawn, p.kept, p.nlri})
	return f.scratch
}

// isEndOfRIB reports whether an UPDATE without routes is the marker of the session's family (RFC 4724 section 2).
func isEndOfRIB(m []byte, v6 bool) bool {
	if !v6 && len(m) == fixedLength {
		return true
	}
	u, _ := splitUpdate(m)
	markers := 0
	attributes(u.attrs, func(a attribute) {
		if x, ok := readUnreach(a.value); ok && a.kind == bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI && len(x.nlri) == 0 {
			markers++
			return
		}
		markers = -1 << 10
	})
	return markers == 1
}

// Routes converts encoded routes. The result is valid until the next call.
func (f *Filter) Routes(encoded []byte) []Route {
	f.listed = f.listed[:0]
	routes(encoded, f.V6, f.Paths, func(r route, _ []byte) {
		f.listed = append(f.listed, Route{r.prefix(f.V6), r.id})
	})
	return f.listed
}

// Refreshes reports whether a ROUTE-REFRESH is an ordinary one for the session's family (RFC 2918).
func (f *Filter) Refreshes(m []byte) bool {
	b := m[headerLength:]
	return len(b) == 4 && b[2] == 0 && f.Family &&
		bgp.NewFamily(binary.BigEndian.Uint16(b), b[3]) == f.own()
}

// RouteSet has the routes that a peer has announced and not withdrawn.
type RouteSet map[route]struct{}

// Apply changes the set by an UPDATE that f has checked.
func (s RouteSet) Apply(f *Filter, u Finding) {
	routes(u.Withdrawn, f.V6, f.Paths, func(r route, _ []byte) { delete(s, r) })
	routes(u.Announced, f.V6, f.Paths, func(r route, _ []byte) { s[r] = struct{}{} })
}
