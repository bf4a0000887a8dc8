package kernel

import (
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// appendRoute writes the message body for r: rtmsg and attributes. A deletion names only what identifies the route.
func appendRoute(b *builder, r Route, deletion bool) {
	family := byte(unix.AF_INET)
	if r.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	scope := byte(r.Scope)
	if deletion {
		scope = unix.RT_SCOPE_NOWHERE // the wildcard
	}
	table := r.Table.number()
	b.buf = append(b.buf, family, byte(r.Dst.Bits()), 0, 0, tableByte(table), byte(r.Protocol), scope, byte(r.Type))
	b.buf = append(b.buf, 0, 0, 0, 0)
	flags := len(b.buf) - 4
	if table > math.MaxUint8 {
		b.attr32(unix.RTA_TABLE, table)
	}
	if r.Dst.Bits() > 0 {
		b.attrAddr(unix.RTA_DST, r.Dst.Addr())
	}
	if r.Metric != 0 {
		b.attr32(unix.RTA_PRIORITY, r.Metric)
	}
	if deletion {
		return
	}
	if r.Src.IsValid() {
		b.attrAddr(unix.RTA_PREFSRC, r.Src)
	}
	switch len(r.NextHops) {
	case 0:
	case 1:
		h := r.NextHops[0]
		if h.OnLink {
			native.PutUint32(b.buf[flags:], unix.RTNH_F_ONLINK)
		}
		appendHop(b, h)
		b.attr32(unix.RTA_OIF, uint32(h.Link))
	default:
		appendMultipath(b, r.NextHops)
	}
}

// tableByte is a table in rtmsg: RTA_TABLE has what does not fit.
func tableByte(number uint32) byte {
	if number > math.MaxUint8 {
		return unix.RT_TABLE_COMPAT
	}
	return byte(number)
}

func appendHop(b *builder, h NextHop) {
	if h.Gateway.IsValid() {
		b.attrAddr(unix.RTA_GATEWAY, h.Gateway.WithZone(""))
	}
}

func appendMultipath(b *builder, hops []NextHop) {
	nest := b.nest(unix.RTA_MULTIPATH)
	for _, h := range hops {
		at := len(b.buf)
		var flags byte
		if h.OnLink {
			flags = unix.RTNH_F_ONLINK
		}
		b.buf = append(b.buf, 0, 0, flags, 0)
		b.buf = native.AppendUint32(b.buf, uint32(h.Link))
		appendHop(b, h)
		native.PutUint16(b.buf[at:], uint16(len(b.buf)-at))
	}
	b.endNest(nest)
}

// parseRoute reads rtmsg and attributes. ok is false for routes of other tables than these, of the cache, or that
// cannot be read.
func parseRoute(data []byte, tables []Table) (r Route, ok bool) {
	if len(data) < unix.SizeofRtMsg {
		return Route{}, false
	}
	family, bits, table := data[0], int(data[1]), uint32(data[4])
	flags := native.Uint32(data[8:])
	if family != unix.AF_INET && family != unix.AF_INET6 || flags&unix.RTM_F_CLONED != 0 || data[3] != 0 {
		return Route{}, false
	}
	r = Route{Protocol: Protocol(data[5]), Scope: Scope(data[6]), Type: RouteType(data[7])}
	dst := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	}
	hop := NextHop{OnLink: flags&unix.RTNH_F_ONLINK != 0}
	var multipath []byte
	for kind, value, rest, more := nextAttr(data[unix.SizeofRtMsg:]); more; kind, value, rest, more = nextAttr(rest) {
		switch kind {
		case unix.RTA_TABLE:
			table = uint32Of(value)
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_PRIORITY:
			r.Metric = uint32Of(value)
		case unix.RTA_PREFSRC:
			r.Src, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			hop.Link = int(uint32Of(value))
		case unix.RTA_GATEWAY:
			hop.Gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_VIA:
			hop.Gateway = viaAddr(value)
		case unix.RTA_MULTIPATH:
			multipath = value
		}
	}
	r.Dst = netip.PrefixFrom(dst, bits)
	r.Table = TableOf(table)
	if !slices.Contains(tables, r.Table) || !r.Dst.IsValid() {
		return Route{}, false
	}
	if r.Type != Unicast {
		return r, true // IPv6 reports "dev lo" for these
	}
	if multipath != nil {
		r.NextHops = parseMultipath(multipath)
	} else {
		r.NextHops = []NextHop{hop}
	}
	return r, true
}

func parseMultipath(b []byte) []NextHop {
	var hops []NextHop
	for len(b) >= unix.SizeofRtNexthop {
		n := int(native.Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			break
		}
		h := NextHop{OnLink: b[2]&unix.RTNH_F_ONLINK != 0, Link: int(native.Uint32(b[4:]))}
		for kind, value, rest, more := nextAttr(b[unix.SizeofRtNexthop:n]); more; kind, value, rest,
			more = nextAttr(rest) {
			switch kind {
			case unix.RTA_GATEWAY:
				h.Gateway, _ = netip.AddrFromSlice(value)
			case unix.RTA_VIA:
				h.Gateway = viaAddr(value)
			}
		}
		hops = append(hops, h)
		b = b[min(align(n), len(b)):]
	}
	return hops
}

// viaAddr reads RTA_VIA: a gateway of another family (RFC 5549).
func viaAddr(b []byte) netip.Addr {
	if len(b) < 2 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(b[2:])
	return a
}

func uint32Of(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return native.Uint32(b)
}
