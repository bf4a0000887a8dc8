package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Owners are workloads by their addresses, each with its number.
type Owners map[netip.Addr]int

// of returns the owner of the source of a tuple.
func (o Owners) of(tuple []byte) (owner int, ok bool) {
	for end := range ends(tuple) {
		a, _ := netip.AddrFromSlice(end)
		owner, ok = o[a]
		return owner, ok // the source is the first one
	}
	return 0, false
}

// Usage is how many connections a workload has: those that it began, and those of others that it answers.
type Usage struct{ Begun, Answered int }

// way returns the part of the usage that a connection of the owner is in.
func (u *Usage) way(begun bool) *int {
	if begun {
		return &u.Begun
	}
	return &u.Answered
}

// CountConnections reads the whole table and returns the number of connections of each owner. A connection counts once:
// for the owner of the address that began it, else for that of the address that answers. The size of the table decides
// the cost.
func (c *Conn) CountConnections(o Owners, owners int) ([]Usage, error) {
	counts := make([]Usage, owners)
	err := c.eachOwned(o, func(owner int, begun bool, _ connection) error {
		*counts[owner].way(begun)++
		return nil
	})
	return counts, err
}

// DeleteConnections deletes so many connections of each owner as excess says, and returns how many it deleted.
func (c *Conn) DeleteConnections(o Owners, excess []Usage) (deleted int, err error) {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	remaining := slices.Clone(excess)
	err = c.eachOwned(o, func(owner int, begun bool, x connection) error {
		left := remaining[owner].way(begun)
		if *left == 0 {
			return nil
		}
		*left--
		ended, err := x.end(s)
		deleted += ended
		return err
	})
	return deleted, err
}

// eachOwned calls f with the connections that have an owner, as far as f returns nil. Their fields point into the
// receive buffer.
func (c *Conn) eachOwned(o Owners, f func(owner int, begun bool, x connection) error) error {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return err
	}
	defer s.Close()
	var failed error
	err = each(s, func(e entry) {
		owner, begun := o.of(e.original)
		answered := false
		if !begun {
			owner, answered = o.of(e.reply)
		}
		if (begun || answered) && failed == nil {
			failed = f(owner, begun, e.connection)
		}
	})
	return cmp.Or(err, failed)
}
