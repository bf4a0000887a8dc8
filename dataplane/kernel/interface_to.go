package kernel

import (
	"fmt"
	"net/netip"
)

// InterfaceTo names the interface that packets to an address leave by, empty if no route leads there. direct: without a
// gateway.
func (c *Conn) InterfaceTo(a netip.Addr) (name string, direct bool, err error) {
	r, err := c.device.RouteTo(a.Unmap().WithZone(""), nil)
	if err != nil {
		return "", false, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	if r == nil || r.LinkIndex == 0 {
		return "", false, nil
	}
	l, err := c.device.LinkByIndex(r.LinkIndex)
	if err != nil {
		return "", false, fmt.Errorf("look up the route to %s: interface %d: %w", a, r.LinkIndex, err)
	}
	return l.Attrs().Name, r.Gw == nil && r.Via == nil, nil
}
