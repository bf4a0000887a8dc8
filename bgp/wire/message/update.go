package message

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// route identifies a route of one peer: prefix and path identifier (RFC 7911). It is small and without pointers.
type route struct {
	high, low uint64 // of the address
	id        uint32
	bits      uint8
}

func (r route) prefix(v6 bool) netip.Prefix {
	if v6 {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:], r.high)
		binary.BigEndian.PutUint64(b[8:], r.low)
		return netip.PrefixFrom(netip.AddrFrom16(b), int(r.bits))
	}
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(r.high>>32))
	return netip.PrefixFrom(netip.AddrFrom4(b), int(r.bits))
}

// routeOf is the route of a masked prefix, without identifier.
func routeOf(p netip.Prefix) (r route) {
	var b [16]byte
	copy(b[:], p.Addr().AsSlice())
	return route{high: binary.BigEndian.Uint64(b[:]), low: binary.BigEndian.Uint64(b[8:]), bits: uint8(p.Bits())}
}

// encoded is the route in a message, without identifier.
func (r route) encoded() []byte {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte{r.bits}, r.high), r.low)
	return b[:1+(int(r.bits)+7)/8]
}

// routes calls f with each route of a list in a message, and its bytes. It returns false at a malformed one.
func routes(list []byte, v6, paths bool, f func(r route, encoded []byte)) bool {
	most := 32
	if v6 {
		most = 128
	}
	for len(list) > 0 {
		var r route
		header := 1
		if paths {
			if len(list) < 5 {
				return false
			}
			r.id, header = binary.BigEndian.Uint32(list), 5
		}
		length := int(list[header-1])
		n := (length + 7) / 8
		if length > most || len(list) < header+n {
			return false
		}
		var address [16]byte
		copy(address[:], list[header:header+n])
		r.high, r.low, r.bits = binary.BigEndian.Uint64(address[:]), binary.BigEndian.Uint64(address[8:]), uint8(length)
		r.mask()
		f(r, list[:header+n])
		list = list[header+n:]
	}
	return true
}

// mask clears the bits behind the prefix, which are irrelevant (RFC 4271 section 4.3).
func (r *route) mask() {
	switch {
	case r.bits <= 64:
		r.high &= ^uint64(0) << (64 - r.bits)
		r.low = 0
	default:
		r.low &= ^uint64(0) << (128 - r.bits)
	}
}

// attribute is a path attribute in a message.
type attribute struct {
	flags byte
	kind  bgp.BGPAttrType
	value []byte
	whole []byte // with its header
}

// nameOf is the name of an attribute in the RFCs.
func nameOf(kind bgp.BGPAttrType) string { return strings.TrimPrefix(kind.String(), "BGP_ATTR_TYPE_") }

// attributes calls f with each of them. It returns false if their lengths do not fit.
func attributes(list []byte, f func(a attribute)) bool {
	for len(list) > 0 {
		if len(list) < 3 {
			return false
		}
		header, n := 3, int(list[2])
		if list[0]&byte(bgp.BGP_ATTR_FLAG_EXTENDED_LENGTH) != 0 {
			if len(list) < 4 {
				return false
			}
			header, n = 4, int(binary.BigEndian.Uint16(list[2:]))
		}
		if len(list) < header+n {
			return false
		}
		f(attribute{list[0], bgp.BGPAttrType(list[1]), list[header : header+n], list[:header+n]})
		list = list[header+n:]
	}
	return true
}

// update is an UPDATE in its parts, which are slices of the message (RFC 4271 section 4.3, RFC 4760).
type update struct {
	withdrawn, attrs, nlri []byte
}

func splitUpdate(m []byte) (u update, ok bool) {
	b := m[headerLength:]
	n := int(binary.BigEndian.Uint16(b))
	if len(b) < 2+n+2 {
		return u, false
	}
	u.withdrawn, b = b[2:2+n], b[2+n:]
	n = int(binary.BigEndian.Uint16(b))
	if len(b) < 2+n {
		return u, false
	}
	u.attrs, u.nlri = b[2:2+n], b[2+n:]
	return u, true
}

// appendUpdate builds an UPDATE. Its parts may be slices of another message than the one appended to.
func appendUpdate(to []byte, u update) []byte {
	start := len(to)
	to = append(to, New(bgp.BGP_MSG_UPDATE)...)
	to = binary.BigEndian.AppendUint16(to, uint16(len(u.withdrawn)))
	to = append(to, u.withdrawn...)
	to = binary.BigEndian.AppendUint16(to, uint16(len(u.attrs)))
	to = append(append(to, u.attrs...), u.nlri...)
	binary.BigEndian.PutUint16(to[start+16:], uint16(len(to)-start))
	return to
}

// multiprotocol is the value of an MP_REACH_NLRI or MP_UNREACH_NLRI attribute (RFC 4760 sections 3 and 4).
type multiprotocol struct {
	family  bgp.Family
	nextHop []byte
	nlri    []byte
}

func readReach(v []byte) (m multiprotocol, ok bool) {
	if len(v) < 5 || len(v) < 5+int(v[3]) {
		return m, false
	}
	n := int(v[3])
	return multiprotocol{bgp.NewFamily(binary.BigEndian.Uint16(v), v[2]), v[4 : 4+n], v[5+n:]}, true
}

func readUnreach(v []byte) (m multiprotocol, ok bool) {
	if len(v) < 3 {
		return m, false
	}
	return multiprotocol{bgp.NewFamily(binary.BigEndian.Uint16(v), v[2]), nil, v[3:]}, true
}

// appendUnreach builds an MP_UNREACH_NLRI attribute.
func appendUnreach(to []byte, v6 bool, lists ...[]byte) []byte {
	n := 3
	for _, l := range lists {
		n += len(l)
	}
	to = append(to, byte(bgp.BGP_ATTR_FLAG_OPTIONAL|bgp.BGP_ATTR_FLAG_EXTENDED_LENGTH),
		byte(bgp.BGP_ATTR_TYPE_MP_UNREACH_NLRI))
	to = binary.BigEndian.AppendUint16(to, uint16(n))
	afi := uint16(bgp.AFI_IP)
	if v6 {
		afi = bgp.AFI_IP6
	}
	to = append(binary.BigEndian.AppendUint16(to, afi), bgp.SAFI_UNICAST)
	for _, l := range lists {
		to = append(to, l...)
	}
	return to
}

// asPath calls f with each AS of an AS_PATH and the type of its segment. It returns the number of ASes, and false if
// the path is malformed (RFC 4271 section 4.3, RFC 7606 section 7.2).
func asPath(v []byte, width int, f func(segment byte, as uint32)) (n int, ok bool) {
	for len(v) > 0 {
		if len(v) < 2 || v[0] == 0 || v[0] > 4 || v[1] == 0 || len(v) < 2+int(v[1])*width {
			return n, false
		}
		count := int(v[1])
		for i := range count {
			as := uint32(binary.BigEndian.Uint16(v[2+i*width:]))
			if width == 4 {
				as = binary.BigEndian.Uint32(v[2+i*4:])
			}
			f(v[0], as)
		}
		n += count
		v = v[2+count*width:]
	}
	return n, true
}

// lengthRule is the length that the value of an attribute must have: exactly, or a multiple of it that is not 0.
type lengthRule struct {
	octets   int
	multiple bool
}

func (r lengthRule) fits(n int) bool {
	if r.multiple {
		return n > 0 && n%r.octets == 0
	}
	return n == r.octets
}

// attributeLengths has the rules of RFC 7606 section 7 and RFC 8092 section 5.
var attributeLengths = map[bgp.BGPAttrType]lengthRule{
	bgp.BGP_ATTR_TYPE_ORIGIN:               {1, false},
	bgp.BGP_ATTR_TYPE_NEXT_HOP:             {4, false},
	bgp.BGP_ATTR_TYPE_MULTI_EXIT_DISC:      {4, false},
	bgp.BGP_ATTR_TYPE_LOCAL_PREF:           {4, false},
	bgp.BGP_ATTR_TYPE_ATOMIC_AGGREGATE:     {0, false},
	bgp.BGP_ATTR_TYPE_COMMUNITIES:          {4, true},
	bgp.BGP_ATTR_TYPE_ORIGINATOR_ID:        {4, false},
	bgp.BGP_ATTR_TYPE_CLUSTER_LIST:         {4, true},
	bgp.BGP_ATTR_TYPE_EXTENDED_COMMUNITIES: {8, true},
	bgp.BGP_ATTR_TYPE_LARGE_COMMUNITY:      {12, true},
	bgp.BGP_ATTR_TYPE_AS4_AGGREGATOR:       {8, false},
}

// discarded are the attributes whose malformed value is removed; that of others makes withdrawals (RFC 7606).
func discarded(kind bgp.BGPAttrType) bool {
	return kind == bgp.BGP_ATTR_TYPE_ATOMIC_AGGREGATE || kind == bgp.BGP_ATTR_TYPE_AGGREGATOR || fourOctet(kind)
}

// fourOctet are the attributes that carry AS numbers past speakers that have two octets for them. Others do not send
// them, and they are removed from their UPDATEs (RFC 6793 section 4.1).
func fourOctet(kind bgp.BGPAttrType) bool {
	return kind == bgp.BGP_ATTR_TYPE_AS4_PATH || kind == bgp.BGP_ATTR_TYPE_AS4_AGGREGATOR
}

// internalOnly are the attributes that another AS has no say in: they are removed from its UPDATEs, whatever their
// value (RFC 7606 sections 7.5, 7.9 and 7.10).
func internalOnly(kind bgp.BGPAttrType) bool {
	return kind == bgp.BGP_ATTR_TYPE_LOCAL_PREF || kind == bgp.BGP_ATTR_TYPE_ORIGINATOR_ID ||
		kind == bgp.BGP_ATTR_TYPE_CLUSTER_LIST
}

// check returns why the value of an attribute is malformed, empty if it is not, or not known to be. width is the number
// of octets of an AS number.
func (a attribute) check(width int, external, loopback bool) string {
	if want, known := bgp.PathAttrFlags[a.kind]; known {
		const ignored = bgp.BGP_ATTR_FLAG_EXTENDED_LENGTH | bgp.BGP_ATTR_FLAG_PARTIAL
		if bgp.BGPAttrFlag(a.flags)&^ignored&0xf0 != want {
			return fmt.Sprintf("attribute %s has the flags %#x", nameOf(a.kind), a.flags)
		}
	}
	if rule, known := attributeLengths[a.kind]; known && !rule.fits(len(a.value)) {
		return fmt.Sprintf("attribute %s has length %d", nameOf(a.kind), len(a.value))
	}
	switch a.kind {
	case bgp.BGP_ATTR_TYPE_ORIGIN:
		if a.value[0] > 2 {
			return fmt.Sprintf("ORIGIN is %d", a.value[0])
		}
	case bgp.BGP_ATTR_TYPE_AGGREGATOR:
		if len(a.value) != width+4 {
			return fmt.Sprintf("attribute %s has length %d", nameOf(a.kind), len(a.value))
		}
		if a.value[0]|a.value[1]|a.value[width-2]|a.value[width-1] == 0 {
			return "AGGREGATOR has AS 0 (RFC 7607)"
		}
	case bgp.BGP_ATTR_TYPE_NEXT_HOP:
		hop, first := netip.AddrFrom4([4]byte(a.value)), a.value[0]
		if first == 0 || first >= 224 || hop.IsLoopback() && !loopback {
			return fmt.Sprintf("NEXT_HOP is %s", hop)
		}
	case bgp.BGP_ATTR_TYPE_AS_PATH:
		return checkPath(a.value, width, external)
	case bgp.BGP_ATTR_TYPE_AS4_PATH:
		if words := checkPath(a.value, 4, true); words != "" {
			return "AS4_PATH: " + words
		}
	}
	return ""
}

func checkPath(v []byte, width int, external bool) string {
	zero, confederation := false, false
	n, ok := asPath(v, width, func(segment byte, as uint32) {
		zero = zero || as == 0
		confederation = confederation || segment >= bgp.BGP_ASPATH_ATTR_TYPE_CONFED_SEQ
	})
	switch {
	case !ok:
		return "AS_PATH is malformed"
	case zero:
		return "AS_PATH has AS 0 (RFC 7607)"
	case external && confederation:
		return "AS_PATH has a segment of a confederation (RFC 5065 section 5)"
	case external && n == 0:
		return "AS_PATH is empty, although the peer is in another AS (RFC 4271 section 5.1.2)"
	}
	return ""
}
