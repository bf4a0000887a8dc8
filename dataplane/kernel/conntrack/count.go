package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Owners say which workload an address belongs to, by its number.
type Owners struct {
	exact map[string]int // in the kernel's form
	nets  []ownedNet
}

type ownedNet struct {
	netip.Prefix
	owner int
}

// NewOwners returns the owners of networks: the i-th list is that of owner i.
func NewOwners(networks [][]netip.Prefix) *Owners {
	o := &Owners{exact: map[string]int{}}
	for owner, list := range networks {
		for _, p := range list {
			if p.IsSingleIP() {
				o.exact[string(p.Addr().AsSlice())] = owner
			} else {
				o.nets = append(o.nets, ownedNet{p, owner})
			}
		}
	}
	return o
}

// of returns the owner of the source of a tuple, -1 for none.
func (o *Owners) of(tuple []byte) int {
	for kind, value := range netlink.Attrs(tuple) {
		if kind != ctTupleIP {
			continue
		}
		for end, address := range netlink.Attrs(value) {
			if end != ctSource4 && end != ctSource6 {
				continue
			}
			if owner, ok := o.exact[string(address)]; ok {
				return owner
			}
			if len(o.nets) == 0 {
				continue
			}
			a, _ := netip.AddrFromSlice(address)
			for _, n := range o.nets {
				if n.Contains(a) {
					return n.owner
				}
			}
		}
	}
	return -1
}

// CountConnections reads the whole table and returns the number of connections of each owner. A connection counts once:
// for the owner of the address that began it, else for that of the address that answers. The size of the table decides
// the cost.
func (c *Conn) CountConnections(o *Owners, owners int) ([]int, error) {
	counts := make([]int, owners)
	err := c.eachOwned(o, func(owner int, _ connection) error {
		counts[owner]++
		return nil
	})
	return counts, err
}

// DeleteConnections deletes so many connections of each owner as excess says, and returns how many it deleted.
func (c *Conn) DeleteConnections(o *Owners, excess []int) (deleted int, err error) {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	remaining := slices.Clone(excess)
	err = c.eachOwned(o, func(owner int, x connection) error {
		if remaining[owner] == 0 {
			return nil
		}
		remaining[owner]--
		ended, err := x.end(s)
		deleted += ended
		return err
	})
	return deleted, err
}

// eachOwned calls f with the connections that have an owner, as far as f returns nil. Their fields point into the
// receive buffer.
func (c *Conn) eachOwned(o *Owners, f func(owner int, x connection) error) error {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return err
	}
	defer s.Close()
	var failed error
	err = each(s, func(e entry) {
		owner := o.of(e.original)
		if owner < 0 {
			owner = o.of(e.reply)
		}
		if owner >= 0 && failed == nil {
			failed = f(owner, e.connection)
		}
	})
	return cmp.Or(err, failed)
}
