package podnet

import (
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// routeTo returns the route to exactly this address, nil if there is none.
func routeTo(h device.Handle, a netip.Addr) (*netlink.Route, error) {
	r, err := h.RouteTo(a, &netlink.RouteGetOptions{FIBMatch: true})
	if r == nil || err != nil || !device.Prefix(r.Dst).IsSingleIP() {
		return nil, err
	}
	return r, nil
}

// InterfaceWith returns the name of the interface of this host that has an address, or that leads to a workload with
// it; empty if there is none. The route to an address behind a gateway is one to another host.
func InterfaceWith(a netip.Addr) (name string, err error) {
	h, err := device.Open()
	if err != nil {
		return "", err
	}
	defer h.Close()
	r, err := routeTo(h, a)
	if err != nil || r == nil || r.Gw != nil || r.Via != nil || r.LinkIndex == 0 {
		return "", err
	}
	l, err := h.LinkByIndex(r.LinkIndex)
	if err != nil {
		return "", err
	}
	return l.Attrs().Name, nil
}

// HasInterface reports whether this host has an interface of that name.
func HasInterface(name string) (bool, error) {
	h, err := device.Open()
	if err != nil {
		return false, err
	}
	defer h.Close()
	_, err = h.LinkByName(name)
	if device.Missing(err) {
		return false, nil
	}
	return err == nil, err
}
