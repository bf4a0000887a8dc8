package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Connections is the table in which the kernel keeps the connections that pass through the host.
type Connections interface {
	// ForgetConnections deletes the connections from and to addresses, before and after translation, so that the next
	// packet of each begins a new one. It reads the table once for each family, without holding up other work, and
	// returns how many it deleted.
	ForgetConnections(addresses []netip.Addr) (int, error)
}

// Numbers of linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctOriginal = 1 // CTA_TUPLE_ORIG
	ctReply    = 2 // CTA_TUPLE_REPLY
	ctID       = 12
	ctZone     = 18

	ctTupleIP = 1 // CTA_TUPLE_IP, which holds a source and a destination, each of IPv4 or IPv6
)

// nfgenHeader is the length of struct nfgenmsg, which begins each message of netfilter.
const nfgenHeader = 4

// connection is what names an entry of the table to the kernel.
type connection struct{ original, zone, id []byte }

// ForgetConnections implements Connections. It has a socket of its own: the table may be large.
func (c *Conn) ForgetConnections(addresses []netip.Addr) (deleted int, err error) {
	var s *socket
	if err := c.inside(func() (err error) {
		s, err = openNetlink(unix.NETLINK_NETFILTER, "nfnetlink", requestQueue)
		return err
	}); err != nil {
		return 0, err
	}
	defer s.close()
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		wanted := map[string]bool{} // in the kernel's form
		for _, a := range addresses {
			if a = a.Unmap(); a.Is4() == (family == unix.AF_INET) {
				wanted[string(a.AsSlice())] = true
			}
		}
		if len(wanted) == 0 {
			continue
		}
		n, err := s.forget(family, wanted)
		deleted += n
		if err != nil {
			return deleted, fmt.Errorf("forget connections of addresses that left their workloads: %w", err)
		}
	}
	return deleted, nil
}

func (s *socket) forget(family byte, addresses map[string]bool) (deleted int, err error) {
	var found []connection
	header := func(b *builder) { b.buf = append(b.buf, family, unix.NFNETLINK_V0, 0, 0) }
	// An answer that changes while it is read is good enough: what begins now has no route, and is not established.
	_, err = s.dumpOnce(ctGet, header, func(m message) {
		if c, ok := connectionOf(m.data, addresses); ok {
			found = append(found, c)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("read the connections: %w", err)
	}
	for _, c := range found {
		err := s.request(ctDelete, 0, func(b *builder) {
			header(b)
			b.attr(ctOriginal|unix.NLA_F_NESTED, c.original)
			if c.zone != nil {
				b.attr(ctZone, c.zone)
			}
			if c.id != nil {
				b.attr(ctID, c.id)
			}
		})
		switch {
		case err == nil:
			deleted++
		case !errors.Is(err, unix.ENOENT): // it ended by itself
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
	for kind, value, rest, more := nextAttr(data[nfgenHeader:]); more; kind, value, rest, more = nextAttr(rest) {
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
	return connection{bytes.Clone(c.original), bytes.Clone(c.zone), bytes.Clone(c.id)}, true
}

// concerns reports whether one end of a tuple has one of the addresses.
func concerns(tuple []byte, addresses map[string]bool) bool {
	for kind, value, rest, more := nextAttr(tuple); more; kind, value, rest, more = nextAttr(rest) {
		if kind != ctTupleIP {
			continue
		}
		for _, end, others, more := nextAttr(value); more; _, end, others, more = nextAttr(others) {
			if addresses[string(end)] {
				return true
			}
		}
	}
	return false
}
