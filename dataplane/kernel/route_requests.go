package kernel

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// batchBytes is what one sendmsg carries at most.
const batchBytes = 32 << 10

// ListRoutes implements Routes.
func (c *Conn) ListRoutes(tables ...Table) ([]Route, error) {
	var all []Route
	err := c.with(func(s *socket) (err error) {
		all = make([]Route, 0, c.listed) // to grow it route by route takes several times the memory
		for _, table := range orMain(tables) {
			for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
				if all, err = s.listRoutes(all, table, family); err != nil {
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
func (s *socket) listRoutes(all []Route, table Table, family byte) ([]Route, error) {
	start, only := len(all), []Table{table}
	err := s.dump(unix.RTM_GETROUTE, func() { all = all[:start] }, func(b *builder) {
		b.buf = append(b.buf, family, 0, 0, 0, tableByte(table.number()), 0, 0, 0, 0, 0, 0, 0)
		b.attr32(unix.RTA_TABLE, table.number())
	}, func(m message) {
		if r, ok := parseRoute(m.data, only); ok && m.kind == unix.RTM_NEWROUTE {
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

// ApplyRoutes implements Routes. Many messages go in one system call, and only the last of them asks for an
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
		err := c.with(func(s *socket) (err error) {
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
func (c *Conn) applyBatch(s *socket, ops []RouteOp, start int, fail func(int, error)) (end int, err error) {
	first := s.seq + 1
	c.out.buf = c.out.buf[:0]
	for end = start; end < len(ops) && len(c.out.buf) < batchBytes; end++ {
		before := len(c.out.buf)
		s.seq++
		appendOp(&c.out, ops[end], s.seq)
		if len(c.out.buf) > batchBytes && end > start {
			c.out.buf = c.out.buf[:before]
			s.seq--
			break
		}
	}
	// c.out.start may be that of a message which was cut off again; find the last one by its length.
	last := lastMessage(c.out.buf)
	native.PutUint16(last[6:], native.Uint16(last[6:])|unix.NLM_F_ACK)
	if err := s.send(c.out.buf); err != nil {
		return end, err
	}
	for {
		data, err := s.receive(0)
		if err != nil {
			return end, err
		}
		for m, rest, ok := nextMessage(data); ok; m, rest, ok = nextMessage(rest) {
			if m.kind != unix.NLMSG_ERROR || m.seq-first > s.seq-first {
				continue
			}
			i := start + int(m.seq-first)
			if err := messageError(m); err != nil && !absent(ops[i], err) {
				fail(i, err)
			}
			if m.seq == s.seq {
				return end, nil
			}
		}
	}
}

func lastMessage(b []byte) []byte {
	for {
		n := int(native.Uint32(b))
		if n >= len(b) {
			return b
		}
		b = b[n:]
	}
}

func appendOp(b *builder, op RouteOp, seq uint32) {
	switch op.Verb {
	case DeleteRoute:
		b.begin(unix.RTM_DELROUTE, 0, seq)
	case ReplaceRoute:
		b.begin(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, seq)
	default:
		b.begin(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, seq)
	}
	appendRoute(b, op.Route, op.Verb == DeleteRoute)
	b.end()
}

func absent(op RouteOp, err error) bool {
	return op.Verb == DeleteRoute && errors.Is(err, unix.ESRCH)
}

// OutcomeUnknown reports whether err leaves it open what the kernel did: list again before deciding anything.
func OutcomeUnknown(err error) bool { return errors.Is(err, errTransport) }

// Occupied reports whether a route could not be added because there is one with its key.
func Occupied(err error) bool { return errors.Is(err, unix.EEXIST) }
