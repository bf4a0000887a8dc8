package conntrack

import (
	"fmt"
	"iter"
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

// Table is that table with the addresses in it.
type Table interface {
	Connections
	// ConnectedAddresses returns the addresses of both ends of all connections. It reads the table once.
	ConnectedAddresses() (map[netip.Addr]bool, error)
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

func forget(s *netlink.Socket, addresses map[string]bool) (int, error) {
	var found []connection
	err := each(s, func(e entry) {
		if concerns(e.original, addresses) || concerns(e.reply, addresses) {
			found = append(found, e.clone())
		}
	})
	if err != nil {
		return 0, err
	}
	return end(s, found)
}

// end deletes connections, and returns how many had not ended before.
func end(s *netlink.Socket, list []connection) (deleted int, err error) {
	for _, c := range list {
		ended, err := c.end(s)
		if err != nil {
			return deleted, err
		}
		deleted += ended
	}
	return deleted, nil
}

// ConnectedAddresses implements Table.
func (c *Conn) ConnectedAddresses() (map[netip.Addr]bool, error) {
	s, err := c.namespace.Open(unix.NETLINK_NETFILTER, netlink.RequestQueue)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	all := map[netip.Addr]bool{}
	err = each(s, func(e entry) {
		for _, tuple := range [][]byte{e.original, e.reply} {
			for end := range ends(tuple) {
				if a, ok := netip.AddrFromSlice(end); ok {
					all[a] = true
				}
			}
		}
	})
	return all, err
}

// concerns reports whether one end of a tuple has one of the addresses.
func concerns(tuple []byte, addresses map[string]bool) bool {
	for end := range ends(tuple) {
		if addresses[string(end)] {
			return true
		}
	}
	return false
}

// ends yields the addresses of a tuple in the kernel's form.
func ends(tuple []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for kind, value := range netlink.Attrs(tuple) {
			if kind != ctTupleIP {
				continue
			}
			for _, end := range netlink.Attrs(value) {
				if !yield(end) {
					return
				}
			}
		}
	}
}
