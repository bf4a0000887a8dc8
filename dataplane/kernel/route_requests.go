package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// batchBytes is the largest size of one sendmsg.
const batchBytes = 32 << 10

// ListRoutes implements Routes.
func (c *Conn) ListRoutes(tables ...Table) ([]Route, error) {
	var all []Route
	err := c.With(func(s *netlink.Socket) (err error) {
		all = make([]Route, 0, c.listed) // to grow it route by route takes several times the memory
		for _, table := range OrMain(tables) {
			for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
				if all, err = listRoutes(s, all, table, family); err != nil {
					return err
				}
			}
		}
		c.listed = len(all)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return all, nil
}

// listRoutes appends the routes of one table and family to all.
func listRoutes(s *netlink.Socket, all []Route, table Table, family byte) ([]Route, error) {
	start, only := len(all), []Table{table}
	err := s.Dump(unix.RTM_GETROUTE, func() { all = all[:start] }, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, family, 0, 0, 0, tableByte(table.number()), 0, 0, 0, 0, 0, 0, 0)
		b.Attr32(unix.RTA_TABLE, table.number())
	}, func(m netlink.Message) {
		if r, ok := parseRoute(m.Data, only); ok && m.Kind == unix.RTM_NEWROUTE {
			if len(all) > start && slices.Equal(r.NextHops, all[len(all)-1].NextHops) {
				r.NextHops = all[len(all)-1].NextHops // as mostly: thousands of routes by one gateway
			}
			all = append(all, r)
		}
	})
	if noFamily(family, err) || noTable(err) {
		return all[:start], nil
	}
	return all, err
}

// noTable: a table exists as long as it has routes, or has had some. Even main does not in a network namespace in which
// no address was ever set.
func noTable(err error) bool { return errors.Is(err, unix.ENOENT) }

// noFamily: a kernel without IPv6 has none of its objects, which is no failure.
func noFamily(family byte, err error) bool {
	return family == unix.AF_INET6 && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT))
}

// ApplyRoutes implements Routes. Many messages go in one system call, and only the last of them requests an
// acknowledgement: the kernel reports failures of the others anyway, by their sequence numbers.
func (c *Conn) ApplyRoutes(ops []RouteOp) []error {
	var errs []error
	fail := func(i int, err error) {
		if errs == nil {
			errs = make([]error, len(ops))
		}
		op := ops[i]
		errs[i] = fmt.Errorf("%s route %s: %w", op.Verb, op.Route.Place(), err)
	}
	for start := 0; start < len(ops); {
		end := start
		err := c.With(func(s *netlink.Socket) (err error) {
			end, err = c.applyBatch(s, ops, start, fail)
			return err
		})
		if err != nil { // nothing is known of this batch: its routes count as failed, and can be tried again
			for i := start; i < max(end, start+1); i++ {
				fail(i, err)
			}
		}
		start = max(end, start+1)
	}
	return errs
}

// applyBatch sends as many operations as fit, from start on, and reads the answers.
func (c *Conn) applyBatch(s *netlink.Socket, ops []RouteOp, start int, fail func(int, error)) (end int, err error) {
	first := s.Seq + 1
	c.out.Buf = c.out.Buf[:0]
	for end = start; end < len(ops) && len(c.out.Buf) < batchBytes; end++ {
		before := len(c.out.Buf)
		s.Seq++
		appendOp(&c.out, ops[end], s.Seq)
		if len(c.out.Buf) > batchBytes && end > start {
			c.out.Buf = c.out.Buf[:before]
			s.Seq--
			break
		}
	}
	// c.out.start may be that of a message which was cut off again; find the last one by its length.
	last := lastMessage(c.out.Buf)
	binary.NativeEndian.PutUint16(last[6:], binary.NativeEndian.Uint16(last[6:])|unix.NLM_F_ACK)
	if err := s.Send(c.out.Buf); err != nil {
		return end, err
	}
	for {
		data, err := s.Receive(0)
		if err != nil {
			return end, err
		}
		for m, rest, ok := netlink.NextMessage(data); ok; m, rest, ok = netlink.NextMessage(rest) {
			if m.Kind != unix.NLMSG_ERROR || m.Seq-first > s.Seq-first {
				continue
			}
			i := start + int(m.Seq-first)
			if err := m.Err(); err != nil && !absent(ops[i], err) {
				fail(i, err)
			}
			if m.Seq == s.Seq {
				return end, nil
			}
		}
	}
}

func lastMessage(b []byte) []byte {
	for {
		n := int(binary.NativeEndian.Uint32(b))
		if n >= len(b) {
			return b
		}
		b = b[n:]
	}
}

func appendOp(b *netlink.Builder, op RouteOp, seq uint32) {
	switch op.Verb {
	case DeleteRoute:
		b.Begin(unix.RTM_DELROUTE, 0, seq)
	case ReplaceRoute:
		b.Begin(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, seq)
	default:
		b.Begin(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, seq)
	}
	appendRoute(b, op.Route, op.Verb == DeleteRoute)
	b.End()
}

func absent(op RouteOp, err error) bool {
	return op.Verb == DeleteRoute && errors.Is(err, unix.ESRCH)
}

// OutcomeUnknown reports whether err leaves the kernel's action unknown: list again before deciding anything.
func OutcomeUnknown(err error) bool { return errors.Is(err, netlink.ErrTransport) }

// Occupied reports whether a route could not be added because there is one with its key.
func Occupied(err error) bool { return errors.Is(err, unix.EEXIST) }
