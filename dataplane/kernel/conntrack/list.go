package conntrack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

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

// ListConnections implements Entries.
func (c *Conn) ListConnections(accepts func(Connection) bool) (list []Connection, err error) {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	err = each(s, func(e entry) {
		if c, ok := readConnection(e); ok && accepts(c) {
			c.entry = c.entry.clone()
			list = append(list, c)
		}
	})
	return list, err
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

// readConnection reads an entry. The result refers to the receive buffer.
func readConnection(e entry) (c Connection, ok bool) {
	original, reply := readTuple(e.original), readTuple(e.reply)
	c = Connection{Source: original.source, Destination: reply.source, Protocol: original.protocol,
		SourcePort: original.ports[0], DestinationPort: reply.ports[0], ICMPType: original.icmp[0],
		ICMPCode: original.icmp[1], entry: e.connection}
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
