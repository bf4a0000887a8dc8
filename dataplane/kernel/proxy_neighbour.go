package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// ProxyNeighbour is an address for which this host answers on an interface, as if it had the address there: by proxy
// ARP (RFC 1027), and for IPv6 as RFC 4861, section 7.2.8 has it.
type ProxyNeighbour struct {
	Link    int
	Address netip.Addr
	// Own is whether a program of Manx made the entry.
	Own bool
}

// ProxyNeighbours reads and changes these entries. The kernel heeds one of IPv4 while the host forwards packets and has
// a route to the address through another interface, and one of IPv6 while net/ipv6/conf/LINK/proxy_ndp is 1.
type ProxyNeighbours interface {
	ListProxyNeighbours() ([]ProxyNeighbour, error)
	// SetProxyNeighbour leaves an entry of another program as it is.
	SetProxyNeighbour(link int, a netip.Addr) error
	// RemoveProxyNeighbour leaves entries of other programs, and succeeds if there is nothing to do.
	RemoveProxyNeighbour(link int, a netip.Addr) error
}

// ListProxyNeighbours implements ProxyNeighbours.
func (c *Conn) ListProxyNeighbours() ([]ProxyNeighbour, error) {
	var all []ProxyNeighbour
	err := c.With(func(s *netlink.Socket) error {
		all = nil
		_, err := s.DumpOnce(unix.RTM_GETNEIGH, func(b *netlink.Builder) {
			header := make([]byte, sizeofNdMsg)
			header[10] = unix.NTF_PROXY
			b.Buf = append(b.Buf, header...)
		}, func(m netlink.Message) {
			if p, ok := parseProxyNeighbour(m.Data); ok {
				all = append(all, p)
			}
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list proxy neighbours: %w", err)
	}
	return all, nil
}

func parseProxyNeighbour(data []byte) (ProxyNeighbour, bool) {
	n, ok := parseNeighbour(data)
	if !ok || data[10]&unix.NTF_PROXY == 0 {
		return ProxyNeighbour{}, false
	}
	return ProxyNeighbour{Link: n.Link, Address: n.Address, Own: n.Own}, true
}

// SetProxyNeighbour implements ProxyNeighbours.
func (c *Conn) SetProxyNeighbour(link int, a netip.Addr) error {
	err := c.With(func(s *netlink.Socket) error {
		if _, there, err := queryProxyNeighbour(s, link, a); err != nil || there {
			return err
		}
		return s.Request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE, func(b *netlink.Builder) {
			ndmsg(b, link, a, unix.NUD_PERMANENT, unix.NTF_PROXY)
			b.Attr(ndaProtocol, []byte{byte(ProtocolCalico)})
		})
	})
	if err != nil {
		return fmt.Errorf("answer for %s on interface %d: %w", a, link, err)
	}
	return nil
}

// RemoveProxyNeighbour implements ProxyNeighbours.
func (c *Conn) RemoveProxyNeighbour(link int, a netip.Addr) error {
	err := c.With(func(s *netlink.Socket) error {
		if old, _, err := queryProxyNeighbour(s, link, a); err != nil || !old.Own {
			return err
		}
		return s.Request(unix.RTM_DELNEIGH, 0, func(b *netlink.Builder) { ndmsg(b, link, a, 0, unix.NTF_PROXY) })
	})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("no longer answer for %s on interface %d: %w", a, link, err)
	}
	return nil
}

// queryProxyNeighbour reads one entry.
func queryProxyNeighbour(s *netlink.Socket, link int, a netip.Addr) (p ProxyNeighbour, there bool, err error) {
	err = s.Query(unix.RTM_GETNEIGH, 0, func(b *netlink.Builder) { ndmsg(b, link, a, 0, unix.NTF_PROXY) },
		func(m netlink.Message) { p, there = parseProxyNeighbour(m.Data) })
	if errors.Is(err, unix.ENOENT) {
		return p, false, nil
	}
	return p, there, err
}
