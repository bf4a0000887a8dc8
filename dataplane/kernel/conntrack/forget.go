package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Connections is the table in which the kernel keeps the connections that pass through the host.
type Connections interface {
	// ForgetConnections deletes the connections from and to addresses, before and after translation, so that the next
	// packet of each begins a new one. It reads the table once, without holding up other work, and returns how many it
	// deleted.
	ForgetConnections(addresses []netip.Addr) (int, error)
}

// Entries is that table connection by connection.
type Entries interface {
	// ListConnections returns the connections that accepts has, and reads the table once.
	ListConnections(accepts func(Connection) bool) ([]Connection, error)
	// EndConnections deletes connections that ListConnections returned, unless they have ended. It returns how many it
	// deleted.
	EndConnections(list []Connection) (int, error)
}

// Connection is an entry of the table as its first packet was after translation of the destination.
type Connection struct {
	Source, Destination         netip.Addr
	Protocol                    uint8
	SourcePort, DestinationPort uint16 // of protocols with ports
	ICMPType, ICMPCode          uint8

	entry connection
}

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctOriginal = 1 // CTA_TUPLE_ORIG
	ctReply    = 2 // CTA_TUPLE_REPLY
	ctID       = 12
	ctZone     = 18

	ctTupleIP    = 1 // CTA_TUPLE_IP, which holds a source and a destination, each of IPv4 or IPv6
	ctTupleProto = 2 // CTA_TUPLE_PROTO
)

// nfgenHeader is the length of struct nfgenmsg, which begins each message of netfilter.
const nfgenHeader = 4

// connection is the kernel's identity of an entry of the table.
type connection struct {
	family             byte
	original, zone, id []byte
}

// Conn is the table of a network namespace.
type Conn struct{ namespace *netlink.Namespace }

var (
	_ Connections = (*Conn)(nil)
	_ Entries     = (*Conn)(nil)
)

// New returns the table of a network namespace.
func New(n *netlink.Namespace) *Conn { return &Conn{n} }

// ForgetConnections implements Connections. It opens a socket of its own: the table may be large.
func (c *Conn) ForgetConnections(addresses []netip.Addr) (deleted int, err error) {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	wanted := map[string]bool{} // in the kernel's form
	for _, a := range addresses {
		wanted[string(a.Unmap().AsSlice())] = true
	}
	if len(wanted) == 0 {
		return 0, nil
	}
	if deleted, err = forget(s, wanted); err != nil {
		return deleted, fmt.Errorf("forget connections of addresses: %w", err)
	}
	return deleted, nil
}

// header begins a message about connections of a family, or of all of them (unix.AF_UNSPEC).
func header(b *netlink.Builder, family byte) { b.Buf = append(b.Buf, family, unix.NFNETLINK_V0, 0, 0) }

func forget(s *netlink.Socket, addresses map[string]bool) (deleted int, err error) {
	var found []connection
	// An answer that changes while it is read is good enough: a new connection has no route, and is not established.
	// The kernel walks its whole table for each dump, so one of all families takes half the time of two.
	_, err = s.DumpOnce(ctGet, func(b *netlink.Builder) { header(b, unix.AF_UNSPEC) }, func(m netlink.Message) {
		if c, ok := connectionOf(m.Data, addresses); ok {
			found = append(found, c)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("read the connections: %w", err)
	}
	return end(s, found)
}

func end(s *netlink.Socket, list []connection) (deleted int, err error) {
	for _, c := range list {
		err := s.Request(ctDelete, 0, func(b *netlink.Builder) {
			header(b, c.family)
			b.Attr(ctOriginal|unix.NLA_F_NESTED, c.original)
			if c.zone != nil {
				b.Attr(ctZone, c.zone)
			}
			if c.id != nil {
				b.Attr(ctID, c.id)
			}
		})
		switch {
		case err == nil:
			deleted++
		case !errors.Is(err, unix.ENOENT): // it had ended already
			return deleted, fmt.Errorf("delete a connection: %w", err)
		}
	}
	return deleted, nil
}

// connectionOf reads an entry of the table; ok is false if it has nothing to do with the addresses.
func connectionOf(data []byte, addresses map[string]bool) (c connection, ok bool) {
	if len(data) < nfgenHeader {
		return c, false
	}
	c.family = data[0]
	for kind, value := range netlink.Attrs(data[nfgenHeader:]) {
		switch kind {
		case ctOriginal:
			c.original = value
			ok = ok || concerns(value, addresses)
		case ctReply:
			ok = ok || concerns(value, addresses)
		case ctZone:
			c.zone = value
		case ctID:
			c.id = value
		}
	}
	if !ok || c.original == nil {
		return connection{}, false
	}
	// The receive buffer is used again.
	return connection{c.family, bytes.Clone(c.original), bytes.Clone(c.zone), bytes.Clone(c.id)}, true
}

// concerns reports whether one end of a tuple has one of the addresses.
func concerns(tuple []byte, addresses map[string]bool) bool {
	for kind, value := range netlink.Attrs(tuple) {
		if kind != ctTupleIP {
			continue
		}
		for _, end := range netlink.Attrs(value) {
			if addresses[string(end)] {
				return true
			}
		}
	}
	return false
}

// ListConnections implements Entries.
func (c *Conn) ListConnections(accepts func(Connection) bool) (list []Connection, err error) {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	_, err = s.DumpOnce(ctGet, func(b *netlink.Builder) { header(b, unix.AF_UNSPEC) }, func(m netlink.Message) {
		if c, ok := readConnection(m.Data); ok && accepts(c) {
			e := c.entry
			c.entry = connection{e.family, bytes.Clone(e.original), bytes.Clone(e.zone), bytes.Clone(e.id)}
			list = append(list, c)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the connections: %w", err)
	}
	return list, nil
}

// EndConnections implements Entries.
func (c *Conn) EndConnections(list []Connection) (int, error) {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	entries := make([]connection, len(list))
	for i := range list {
		entries[i] = list[i].entry
	}
	return end(s, entries)
}

// tuple is one direction of a connection.
type tuple struct {
	source   netip.Addr
	protocol uint8
	ports    [2]uint16 // source, destination
	icmp     [2]uint8  // type, code
}

// readConnection reads an entry. The result refers to data.
func readConnection(data []byte) (c Connection, ok bool) {
	if len(data) < nfgenHeader {
		return c, false
	}
	c.entry.family = data[0]
	var original, reply tuple
	for kind, value := range netlink.Attrs(data[nfgenHeader:]) {
		switch kind {
		case ctOriginal:
			c.entry.original, original = value, readTuple(value)
		case ctReply:
			reply = readTuple(value)
		case ctZone:
			c.entry.zone = value
		case ctID:
			c.entry.id = value
		}
	}
	c.Source, c.Destination, c.Protocol = original.source, reply.source, original.protocol
	c.SourcePort, c.DestinationPort = original.ports[0], reply.ports[0]
	c.ICMPType, c.ICMPCode = original.icmp[0], original.icmp[1]
	return c, c.Source.IsValid() && c.Destination.IsValid()
}

func readTuple(data []byte) (t tuple) {
	for kind, value := range netlink.Attrs(data) {
		for part, v := range netlink.Attrs(value) {
			switch {
			case kind == ctTupleIP && (part == 1 || part == 3): // CTA_IP_V4_SRC, CTA_IP_V6_SRC
				t.source, _ = netip.AddrFromSlice(v)
			case kind != ctTupleProto || len(v) == 0:
			case part == 1: // CTA_PROTO_NUM
				t.protocol = v[0]
			case (part == 2 || part == 3) && len(v) == 2: // CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT
				t.ports[part-2] = binary.BigEndian.Uint16(v)
			case part == 5 || part == 8: // CTA_PROTO_ICMP_TYPE, CTA_PROTO_ICMPV6_TYPE
				t.icmp[0] = v[0]
			case part == 6 || part == 9: // CTA_PROTO_ICMP_CODE, CTA_PROTO_ICMPV6_CODE
				t.icmp[1] = v[0]
			}
		}
	}
	return t
}
