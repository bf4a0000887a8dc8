package kernel

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// InterfaceTo names the interface that packets to an address with a mark leave by, empty if no route leads there.
// direct: without a gateway.
func (c *Conn) InterfaceTo(a netip.Addr, mark uint32) (name string, direct bool, err error) {
	err = c.onDevice(func(h device.Handle) error {
		r, err := h.RouteTo(a.Unmap().WithZone(""), &netlink.RouteGetOptions{Mark: mark})
		if err != nil || r == nil || r.LinkIndex == 0 {
			return err
		}
		l, err := h.LinkByIndex(r.LinkIndex)
		if err != nil {
			return fmt.Errorf("interface %d: %w", r.LinkIndex, err)
		}
		name, direct = l.Attrs().Name, r.Gw == nil && r.Via == nil
		return nil
	})
	if err != nil {
		return "", false, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	return name, direct, nil
}
