package device

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Handle is a socket of rtnetlink in one network namespace, with the requests of the library and those below. It does
// not check strictly (NETLINK_GET_STRICT_CHK): the library's lookup of IPv6 routes fails on a strict socket. Its errors
// are the kernel's numbers without the kernel's text. It is safe for concurrent use.
type Handle struct{ *netlink.Handle }

// Open opens a Handle in the namespace of the calling thread.
func Open() (Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return Handle{}, fmt.Errorf("open an rtnetlink socket: %w", err)
	}
	return Handle{h}, nil
}

// IsOpen reports whether Open made the Handle.
func (h Handle) IsOpen() bool { return h.Handle != nil }

// Close closes the socket, if there is one.
func (h Handle) Close() {
	if h.IsOpen() {
		h.Handle.Close()
	}
}

// At is the interface with an index, for requests that use no other attribute of it.
func At(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// Missing reports whether an error is about an interface that does not exist.
func Missing(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.As(err, new(netlink.LinkNotFoundError))
}

// HasAddress reports whether an interface exists and has an address that is not link-local.
func (h Handle) HasAddress(name string) (bool, error) {
	link, err := h.LinkByName(name)
	if Missing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	addresses, err := Whole(func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
	return slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return !a.IP.IsLinkLocalUnicast() }), err
}

// IPNet returns an address with the length of its subnet in the library's form.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Prefix is the reverse of IPNet. The library has IPv4 addresses in two lengths.
func Prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	a, _ := netip.AddrFromSlice(n.IP)
	bits, length := n.Mask.Size()
	if length == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits)
}

// Gateway returns the gateway of a route, an invalid address if it has none or one of the other family.
func Gateway(r *netlink.Route) netip.Addr {
	a, _ := netip.AddrFromSlice(r.Gw)
	return a.Unmap()
}

// listTries bounds how often a list is read that changes meanwhile.
const listTries = 10

// Whole reads a list again while the kernel reports that it changed during the dump: the library returns a part then.
func Whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range listTries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return nil, err
}

// RouteTo returns the route that packets to an address take, nil if there is none, or one of type blackhole,
// unreachable or prohibit. It reads one route, not the table, which may hold 100,000 others. options may be nil.
func (h Handle) RouteTo(a netip.Addr, options *netlink.RouteGetOptions) (*netlink.Route, error) {
	routes, err := h.RouteGetWithOptions(a.AsSlice(), options)
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES} {
		if errors.Is(err, none) {
			return nil, nil
		}
	}
	if err != nil || len(routes) == 0 {
		return nil, err
	}
	return &routes[0], nil
}
