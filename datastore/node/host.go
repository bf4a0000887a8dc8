package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/manxnet/manx/datastore/model"
)

// Family is an address family.
type Family int

// The address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

var bothFamilies = []Family{IPv4, IPv6}

func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// has reports whether an address is of the family.
func (f Family) has(a netip.Addr) bool { return a.Is4() == (f == IPv4) }

// Interface is one network interface of the host.
type Interface struct {
	Name  string
	Index int
	// Addresses are in the kernel's order, each with the length of its subnet.
	Addresses []netip.Prefix
}

// HostAddresses has the queries of registration about the host.
type HostAddresses interface {
	Interfaces() ([]Interface, error)
	// SourceFor returns the kernel's source address for a destination: an address or a name.
	SourceFor(ctx context.Context, destination string, family Family) (netip.Addr, error)
}

// System is the host that this process runs on, in the process's network namespace.
type System struct{}

var _ HostAddresses = System{}

// Interfaces implements HostAddresses.
func (System) Interfaces() ([]Interface, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	interfaces := make([]Interface, 0, len(links))
	for _, link := range links {
		if link.Name == model.DeviceWireguard || link.Name == model.DeviceWireguardV6 {
			continue // they have what the Node says, which is no sign that it is this host's address
		}
		addrs, err := link.Addrs()
		if err != nil {
			continue // deleted meanwhile
		}
		i := Interface{Name: link.Name, Index: link.Index}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if p, ok := prefixOf(n); ok {
					i.Addresses = append(i.Addresses, p)
				}
			}
		}
		interfaces = append(interfaces, i)
	}
	return interfaces, nil
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || bits == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a.Unmap(), ones), true
}

// SourceFor implements HostAddresses. It opens a UDP socket and sends nothing.
func (System) SourceFor(ctx context.Context, destination string, family Family) (netip.Addr, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, fmt.Sprintf("udp%d", int(family)), net.JoinHostPort(destination, "80"))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no %s route to %s: %w", family, destination, err)
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
