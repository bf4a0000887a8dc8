package kernel

import (
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// InterfaceTo names the interface that packets to an address leave by, empty if no route leads there. direct: without a
// gateway.
func (c *Conn) InterfaceTo(a netip.Addr) (name string, direct bool, err error) {
	err = c.onDevice(func(h device.Handle) error {
		r, err := h.RouteTo(a.Unmap().WithZone(""), nil)
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
