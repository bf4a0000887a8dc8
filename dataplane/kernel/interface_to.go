package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// InterfaceTo names the interface that packets to an address leave by, empty if no route leads there.
func (c *Conn) InterfaceTo(a netip.Addr) (string, error) {
	name := ""
	err := c.inside(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		defer h.Close()
		routes, err := h.RouteGet(a.Unmap().WithZone("").AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL) ||
			errors.Is(err, unix.EACCES) {
			return nil // no route, or one of type blackhole, unreachable or prohibit
		}
		if err != nil {
			return fmt.Errorf("look up the route to %s: %w", a, err)
		}
		for _, r := range routes {
			l, err := h.LinkByIndex(r.LinkIndex)
			if err != nil {
				return fmt.Errorf("look up the route to %s: interface %d: %w", a, r.LinkIndex, err)
			}
			name = l.Attrs().Name
		}
		return nil
	})
	return name, err
}
