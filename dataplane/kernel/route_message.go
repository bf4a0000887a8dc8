package kernel

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// appendRoute writes the message body for r: rtmsg and attributes. A deletion names only the identity of the route.
func appendRoute(b *netlink.Builder, r Route, deletion bool) {
	family := byte(unix.AF_INET)
	if r.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	scope := byte(r.Scope)
	if deletion {
		scope = unix.RT_SCOPE_NOWHERE // the wildcard
	}
	table := r.Table.number()
	b.Buf = append(b.Buf, family, byte(r.Dst.Bits()), 0, 0, tableByte(table), byte(r.Protocol), scope, byte(r.Type))
	b.Buf = append(b.Buf, 0, 0, 0, 0)
	flags := len(b.Buf) - 4
	if table > math.MaxUint8 {
		b.Attr32(unix.RTA_TABLE, table)
	}
	if r.Dst.Bits() > 0 {
		b.AttrAddr(unix.RTA_DST, r.Dst.Addr())
	}
	if r.Metric != 0 {
		b.Attr32(unix.RTA_PRIORITY, r.Metric)
	}
	if deletion {
		return
	}
	if r.Src.IsValid() {
		b.AttrAddr(unix.RTA_PREFSRC, r.Src)
	}
	if r.MTU != 0 {
		metrics := b.Nest(unix.RTA_METRICS)
		b.Attr32(unix.RTAX_MTU, r.MTU)
		b.EndNest(metrics)
	}
	switch len(r.NextHops) {
	case 0:
	case 1:
		h := r.NextHops[0]
		if h.OnLink {
			binary.NativeEndian.PutUint32(b.Buf[flags:], unix.RTNH_F_ONLINK)
		}
		appendHop(b, h)
		b.Attr32(unix.RTA_OIF, uint32(h.Link))
	default:
		appendMultipath(b, r.NextHops)
	}
}

// tableByte is a table in rtmsg: RTA_TABLE has larger numbers.
func tableByte(number uint32) byte {
	if number > math.MaxUint8 {
		return unix.RT_TABLE_COMPAT
	}
	return byte(number)
}

func appendHop(b *netlink.Builder, h NextHop) {
	if h.Gateway.IsValid() {
		b.AttrAddr(unix.RTA_GATEWAY, h.Gateway.WithZone(""))
	}
}

func appendMultipath(b *netlink.Builder, hops []NextHop) {
	nest := b.Nest(unix.RTA_MULTIPATH)
	for _, h := range hops {
		at := len(b.Buf)
		var flags byte
		if h.OnLink {
			flags = unix.RTNH_F_ONLINK
		}
		b.Buf = append(b.Buf, 0, 0, flags, 0)
		b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(h.Link))
		appendHop(b, h)
		binary.NativeEndian.PutUint16(b.Buf[at:], uint16(len(b.Buf)-at))
	}
	b.EndNest(nest)
}

// parseRoute reads rtmsg and attributes. ok is false for routes of other tables than these, of the cache, or that
// cannot be read.
func parseRoute(data []byte, tables []Table) (r Route, ok bool) {
	if len(data) < unix.SizeofRtMsg {
		return Route{}, false
	}
	family, bits, table := data[0], int(data[1]), uint32(data[4])
	flags := binary.NativeEndian.Uint32(data[8:])
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
	for kind, value := range netlink.Attrs(data[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_TABLE:
			table = uint32Of(value)
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_PRIORITY:
			r.Metric = uint32Of(value)
		case unix.RTA_PREFSRC:
			r.Src, _ = netip.AddrFromSlice(value)
		case unix.RTA_METRICS:
			for kind, value := range netlink.Attrs(value) {
				if kind == unix.RTAX_MTU {
					r.MTU = uint32Of(value)
				}
			}
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
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			break
		}
		h := NextHop{OnLink: b[2]&unix.RTNH_F_ONLINK != 0, Link: int(binary.NativeEndian.Uint32(b[4:]))}
		for kind, value := range netlink.Attrs(b[unix.SizeofRtNexthop:n]) {
			switch kind {
			case unix.RTA_GATEWAY:
				h.Gateway, _ = netip.AddrFromSlice(value)
			case unix.RTA_VIA:
				h.Gateway = viaAddr(value)
			}
		}
		hops = append(hops, h)
		b = b[min(netlink.Align(n), len(b)):]
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
	return binary.NativeEndian.Uint32(b)
}
