package conntrack

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

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
	ctSource4    = 1 // CTA_IP_V4_SRC
	ctSource6    = 3 // CTA_IP_V6_SRC
)

// nfgenHeader is the length of struct nfgenmsg, which begins each message of netfilter.
const nfgenHeader = 4

// connection is the kernel's identity of an entry of the table.
type connection struct {
	family             byte
	original, zone, id []byte
}

// end deletes the connection, and returns 1, or 0 if it has ended already.
func (c connection) end(s *netlink.Socket) (int, error) {
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
		return 1, nil
	case errors.Is(err, unix.ENOENT):
		return 0, nil
	}
	return 0, fmt.Errorf("delete a connection: %w", err)
}

// clone copies the connection out of the receive buffer.
func (c connection) clone() connection {
	return connection{c.family, bytes.Clone(c.original), bytes.Clone(c.zone), bytes.Clone(c.id)}
}

// entry is an entry of the table. It points into the receive buffer.
type entry struct {
	connection
	reply []byte
}

// each calls f with the entries of the table. An answer that changes while it is read is good enough. The kernel walks
// its whole table for each dump, so one of all families takes half the time of two.
func each(s *netlink.Socket, f func(entry)) error {
	_, err := s.DumpOnce(ctGet, func(b *netlink.Builder) { header(b, unix.AF_UNSPEC) }, func(m netlink.Message) {
		if len(m.Data) < nfgenHeader {
			return
		}
		e := entry{connection: connection{family: m.Data[0]}}
		for kind, value := range netlink.Attrs(m.Data[nfgenHeader:]) {
			switch kind {
			case ctOriginal:
				e.original = value
			case ctReply:
				e.reply = value
			case ctZone:
				e.zone = value
			case ctID:
				e.id = value
			}
		}
		if e.original != nil {
			f(e)
		}
	})
	if err != nil {
		return fmt.Errorf("read the connections: %w", err)
	}
	return nil
}

// header begins a message about connections of a family, or of all of them (unix.AF_UNSPEC).
func header(b *netlink.Builder, family byte) { b.Buf = append(b.Buf, family, unix.NFNETLINK_V0, 0, 0) }
