package podnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// rtnetlink is a socket in one network namespace. Its calls block their thread, and one message answers each of them:
// a plugin has nothing else to do meanwhile.
type rtnetlink struct{ *netlink.Socket }

// openRtnetlink opens a socket in the namespace of the calling thread.
func openRtnetlink() (rtnetlink, error) {
	s, err := (*netlink.Namespace)(nil).Open(unix.NETLINK_ROUTE, netlink.RequestQueue)
	return rtnetlink{s}, err
}

func (s rtnetlink) close() {
	if s.Socket != nil {
		s.Socket.Close()
	}
}

// link is an interface.
type link struct {
	index, peer int // peer is the index of the other end, in its namespace
	name, kind  string
	mac         net.HardwareAddr
	up          bool
	namespace   int // identifies the namespace of the other end, -1 if that is this one or has no number
}

// Attributes and flags that package unix lacks.
const (
	vethInfoPeer = 1      // VETH_INFO_PEER
	ndaProtocol  = 12     // NDA_PROTOCOL
	skipStats    = 1 << 3 // RTEXT_FILTER_SKIP_STATS
)

// ifinfomsg appends the header of a message about an interface.
func ifinfomsg(b *netlink.Builder, index int, flags, change uint32) {
	b.Buf = append(b.Buf, unix.AF_UNSPEC, 0, 0, 0)
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(index))
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, flags)
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, change)
}

// named returns the interface of a name; see linkMissing.
func (s rtnetlink) named(name string) (link, error) { return s.get(0, name) }

// numbered returns the interface of an index.
func (s rtnetlink) numbered(index int) (link, error) { return s.get(index, "") }

func (s rtnetlink) get(index int, name string) (l link, err error) {
	err = s.Query(unix.RTM_GETLINK, 0, func(b *netlink.Builder) {
		ifinfomsg(b, index, 0, 0)
		if name != "" {
			b.AttrText(unix.IFLA_IFNAME, name)
		}
		b.Attr32(unix.IFLA_EXT_MASK, skipStats)
	}, func(m netlink.Message) { l = parseLink(m.Data) })
	return l, err
}

func parseLink(data []byte) link {
	l := link{namespace: -1}
	if len(data) < unix.SizeofIfInfomsg {
		return l
	}
	l.index = int(binary.NativeEndian.Uint32(data[4:]))
	l.up = binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP != 0
	for kind, value := range netlink.Attrs(data[unix.SizeofIfInfomsg:]) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.name = text(value)
		case unix.IFLA_ADDRESS:
			l.mac = append(net.HardwareAddr(nil), value...)
		case unix.IFLA_LINK:
			l.peer = int(number(value))
		case unix.IFLA_LINK_NETNSID:
			l.namespace = int(int32(number(value)))
		case unix.IFLA_LINKINFO:
			for kind, value := range netlink.Attrs(value) {
				if kind == unix.IFLA_INFO_KIND {
					l.kind = text(value)
				}
			}
		}
	}
	return l
}

// text returns a text without its final zero.
func text(value []byte) string {
	if n := len(value); n > 0 && value[n-1] == 0 {
		value = value[:n-1]
	}
	return string(value)
}

func number(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(value)
}

// linkMissing reports whether an error is for an interface that does not exist.
func linkMissing(err error) bool { return errors.Is(err, unix.ENODEV) }

// end are the attributes of one end of a veth pair.
type end struct {
	name   string
	mtu    int // 0: the kernel's default
	queues int // of each direction; 0 or 1: one
	mac    net.HardwareAddr
}

func (e end) attributes(b *netlink.Builder) {
	b.AttrText(unix.IFLA_IFNAME, e.name)
	if e.mtu > 0 {
		b.Attr32(unix.IFLA_MTU, uint32(e.mtu))
	}
	if e.mac != nil {
		b.Attr(unix.IFLA_ADDRESS, e.mac)
	}
	if e.queues > 1 {
		b.Attr32(unix.IFLA_NUM_TX_QUEUES, uint32(e.queues))
		b.Attr32(unix.IFLA_NUM_RX_QUEUES, uint32(e.queues))
	}
}

// addVeth makes a pair: one end here, the other in the namespace of a file.
func (s rtnetlink) addVeth(here, there end, namespace int) error {
	return s.Request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func(b *netlink.Builder) {
		ifinfomsg(b, 0, 0, 0)
		here.attributes(b)
		info := b.Nest(unix.IFLA_LINKINFO)
		b.AttrText(unix.IFLA_INFO_KIND, "veth")
		data := b.Nest(unix.IFLA_INFO_DATA)
		peer := b.Nest(vethInfoPeer)
		ifinfomsg(b, 0, 0, 0)
		there.attributes(b)
		b.Attr32(unix.IFLA_NET_NS_FD, uint32(namespace))
		b.EndNest(peer)
		b.EndNest(data)
		b.EndNest(info)
	})
}

func (s rtnetlink) remove(l link) error {
	return s.Request(unix.RTM_DELLINK, 0, func(b *netlink.Builder) { ifinfomsg(b, l.index, 0, 0) })
}

func (s rtnetlink) bringUp(l link) error {
	return s.Request(unix.RTM_NEWLINK, 0, func(b *netlink.Builder) { ifinfomsg(b, l.index, unix.IFF_UP, unix.IFF_UP) })
}

func (s rtnetlink) setMAC(l link, mac net.HardwareAddr) error {
	return s.Request(unix.RTM_NEWLINK, 0, func(b *netlink.Builder) {
		ifinfomsg(b, l.index, 0, 0)
		b.Attr(unix.IFLA_ADDRESS, mac)
	})
}

// numberOf returns the number by which this namespace knows the one of a file, -1 for none.
func (s rtnetlink) numberOf(namespace int) (n int, err error) {
	n = -1
	err = s.Query(unix.RTM_GETNSID, 0, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, unix.AF_UNSPEC, 0, 0, 0)
		b.Attr32(unix.NETNSA_FD, uint32(namespace))
	}, func(m netlink.Message) {
		for kind, value := range netlink.Attrs(m.Data[min(4, len(m.Data)):]) {
			if kind == unix.NETNSA_NSID {
				n = int(int32(number(value)))
			}
		}
	})
	return n, err
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ifaddrmsg appends the header of a message about addresses.
func ifaddrmsg(b *netlink.Builder, m unix.IfAddrmsg) {
	b.Buf = append(b.Buf, m.Family, m.Prefixlen, m.Flags, m.Scope)
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, m.Index)
}

func (s rtnetlink) addAddress(l link, p netip.Prefix, flags, scope byte) error {
	return s.Request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func(b *netlink.Builder) {
		ifaddrmsg(b, unix.IfAddrmsg{Family: family(p.Addr()), Prefixlen: byte(p.Bits()), Flags: flags, Scope: scope,
			Index: uint32(l.index)})
		b.AttrAddr(unix.IFA_LOCAL, p.Addr())
		b.AttrAddr(unix.IFA_ADDRESS, p.Addr())
	})
}

// addresses returns the addresses of an interface.
func (s rtnetlink) addresses(l link) (map[netip.Addr]bool, error) {
	var found map[netip.Addr]bool
	err := s.Dump(unix.RTM_GETADDR, func() { found = map[netip.Addr]bool{} },
		func(b *netlink.Builder) { ifaddrmsg(b, unix.IfAddrmsg{Index: uint32(l.index)}) },
		func(m netlink.Message) {
			if len(m.Data) < unix.SizeofIfAddrmsg || int(number(m.Data[4:])) != l.index {
				return
			}
			for kind, value := range netlink.Attrs(m.Data[unix.SizeofIfAddrmsg:]) {
				if a, ok := netip.AddrFromSlice(value); ok && (kind == unix.IFA_LOCAL || kind == unix.IFA_ADDRESS) {
					found[a] = true
				}
			}
		})
	return found, err
}

// route is a unicast route of the main table.
type route struct {
	dst      netip.Prefix
	gateway  netip.Addr // invalid: none
	link     int        // index
	scope    byte
	protocol byte
	metric   int
}

// rtmsg appends the header of a message about routes.
func rtmsg(b *netlink.Builder, m unix.RtMsg) {
	b.Buf = append(b.Buf, m.Family, m.Dst_len, m.Src_len, m.Tos, m.Table, m.Protocol, m.Scope, m.Type)
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, m.Flags)
}

func (s rtnetlink) addRoute(r route) error {
	return s.Request(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, func(b *netlink.Builder) {
		rtmsg(b, unix.RtMsg{Family: family(r.dst.Addr()), Dst_len: byte(r.dst.Bits()), Table: unix.RT_TABLE_MAIN,
			Protocol: r.protocol, Scope: r.scope, Type: unix.RTN_UNICAST})
		if r.dst.Bits() > 0 {
			b.AttrAddr(unix.RTA_DST, r.dst.Addr())
		}
		if r.gateway.IsValid() {
			b.AttrAddr(unix.RTA_GATEWAY, r.gateway)
		}
		b.Attr32(unix.RTA_OIF, uint32(r.link))
		if r.metric > 0 {
			b.Attr32(unix.RTA_PRIORITY, uint32(r.metric))
		}
	})
}

func parseRoute(data []byte) (r route, ok bool) {
	if len(data) < unix.SizeofRtMsg {
		return r, false
	}
	dst := netip.IPv6Unspecified()
	if data[0] == unix.AF_INET {
		dst = netip.IPv4Unspecified()
	}
	for kind, value := range netlink.Attrs(data[unix.SizeofRtMsg:]) {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_GATEWAY:
			r.gateway, _ = netip.AddrFromSlice(value)
		case unix.RTA_OIF:
			r.link = int(number(value))
		}
	}
	r.dst = netip.PrefixFrom(dst, int(data[1]))
	return r, r.dst.IsValid()
}

// routes returns the routes of a namespace.
func (s rtnetlink) routes() (list []route, err error) {
	err = s.Dump(unix.RTM_GETROUTE, func() { list = nil },
		func(b *netlink.Builder) { rtmsg(b, unix.RtMsg{}) },
		func(m netlink.Message) {
			if r, ok := parseRoute(m.Data); ok {
				list = append(list, r)
			}
		})
	return list, err
}

// routeTo returns the route to exactly this address, nil if there is none. It reads one route, not the whole table,
// which may hold 100,000 others.
func (s rtnetlink) routeTo(a netip.Addr) (found *route, err error) {
	err = s.Query(unix.RTM_GETROUTE, 0, func(b *netlink.Builder) {
		rtmsg(b, unix.RtMsg{Family: family(a), Dst_len: byte(a.BitLen()), Flags: unix.RTM_F_FIB_MATCH})
		b.AttrAddr(unix.RTA_DST, a)
	}, func(m netlink.Message) {
		if r, ok := parseRoute(m.Data); ok && r.dst.IsSingleIP() {
			found = &r
		}
	})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL) {
		return nil, nil // no route, or a blackhole
	}
	if err != nil {
		return nil, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	return found, nil
}

// ndmsg appends the header of a message about a neighbour.
func ndmsg(b *netlink.Builder, l link, a netip.Addr, state uint16) {
	b.Buf = append(b.Buf, family(a), 0, 0, 0)
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(l.index))
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, state)
	b.Buf = append(b.Buf, 0, 0)
	b.AttrAddr(unix.NDA_DST, a)
}

// protocolCalico is the origin of the entries for workloads, by which the agent recognises its own.
const protocolCalico = 80

// setNeighbour makes a permanent entry.
func (s rtnetlink) setNeighbour(l link, a netip.Addr, mac net.HardwareAddr) error {
	return s.Request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, func(b *netlink.Builder) {
		ndmsg(b, l, a, unix.NUD_PERMANENT)
		b.Attr(unix.NDA_LLADDR, mac)
		b.Attr(ndaProtocol, []byte{protocolCalico})
	})
}
