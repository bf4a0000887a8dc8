package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// InterfaceTo names the interface that packets to an address leave by, empty if no route leads there. direct: without a
// gateway.
func (c *Conn) InterfaceTo(a netip.Addr) (name string, direct bool, err error) {
	err = c.With(func(s *netlink.Socket) error {
		index, without, err := interfaceTo(s, a.Unmap().WithZone(""))
		if err != nil || index == 0 {
			return err
		}
		direct = without
		l, err := queryLink(s, uint32(index), func(*netlink.Builder) {})
		if err != nil {
			return fmt.Errorf("interface %d: %w", index, err)
		}
		name = l.Name
		return nil
	})
	if err != nil {
		return "", false, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	return name, direct, nil
}

// interfaceTo queries the kernel for the index of an interface, 0 if there is no route, or one of type blackhole,
// unreachable or prohibit. direct: without a gateway.
func interfaceTo(s *netlink.Socket, a netip.Addr) (index int, direct bool, err error) {
	direct = true
	family := byte(unix.AF_INET)
	if a.Is6() {
		family = unix.AF_INET6
	}
	err = s.Query(unix.RTM_GETROUTE, 0, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, family, byte(a.BitLen()), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		b.AttrAddr(unix.RTA_DST, a)
	}, func(m netlink.Message) {
		for kind, value := range netlink.Attrs(m.Data[min(unix.SizeofRtMsg, len(m.Data)):]) {
			switch {
			case kind == unix.RTA_OIF && len(value) == 4:
				index = int(binary.NativeEndian.Uint32(value))
			case kind == unix.RTA_GATEWAY, kind == unix.RTA_VIA:
				direct = false
			}
		}
	})
	for _, none := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES} {
		if errors.Is(err, none) {
			return 0, false, nil
		}
	}
	return index, direct, err
}
