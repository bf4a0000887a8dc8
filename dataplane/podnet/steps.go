package podnet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func (w *wiring) removeOld() error {
	link, err := w.host.LinkByName(w.HostIf)
	if linkMissing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface %s: %w", w.HostIf, err)
	}
	if err := w.refuseForeign(link.Attrs()); err != nil {
		return err
	}
	return removeVeth(w.host, w.HostIf)
}

// refuseForeign fails if old, an interface of the host end's name, leads to where it must not be removed.
func (w *wiring) refuseForeign(old *netlink.LinkAttrs) error {
	id, err := w.host.GetNetNsIdByFd(int(w.ns.handle))
	if err != nil {
		return fmt.Errorf("identify %s: %w", w.Netns, err)
	}
	if old.NetNsID != id || id < 0 {
		if w.Exclusive {
			return fmt.Errorf("interface %s exists and belongs to another container", w.HostIf)
		}
		return nil
	}
	inside, err := w.pod.LinkByIndex(old.ParentIndex)
	if err == nil && inside.Attrs().Name != w.IfName {
		return fmt.Errorf("%s is the other end of %s in %s: a container can have one interface of this network, "+
			"not also %s",
			w.HostIf, inside.Attrs().Name, w.Netns, w.IfName)
	}
	return nil
}

// create makes both ends at once, each in its namespace and with its final hardware address, so that no program (udev)
// sees an unfinished interface.
func (w *wiring) create() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = w.HostIf
	attrs.MTU = w.MTU
	attrs.HardwareAddr = hostMAC
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: w.IfName, PeerNamespace: netlink.NsFd(w.ns.handle),
		PeerHardwareAddr: w.MAC, PeerMTU: uint32(w.MTU), PeerTxQLen: -1,
	}
	if q := w.Queues; q > 1 {
		veth.NumTxQueues, veth.NumRxQueues = q, q
		veth.PeerNumTxQueues, veth.PeerNumRxQueues = uint32(q), uint32(q)
	}
	if err := w.host.LinkAdd(veth); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s exists in %s and is not an interface of ours: %w", w.IfName, w.Netns, err)
		}
		return fmt.Errorf("veth %s with peer %s in %s: %w", w.HostIf, w.IfName, w.Netns, err)
	}
	w.outside = veth
	var err error
	if w.outside, err = w.host.LinkByName(w.HostIf); err != nil {
		w.outside = veth // still to be removed
		return fmt.Errorf("read %s: %w", w.HostIf, err)
	}
	if w.inside, err = w.pod.LinkByName(w.IfName); err != nil {
		return fmt.Errorf("read %s in %s: %w", w.IfName, w.Netns, err)
	}
	return nil
}

func (w *wiring) up() error {
	if err := w.host.LinkSetUp(w.outside); err != nil {
		return fmt.Errorf("%s: %w", w.HostIf, err)
	}
	if err := w.pod.LinkSetUp(w.inside); err != nil {
		return fmt.Errorf("%s in %s: %w", w.IfName, w.Netns, err)
	}
	return nil
}

// gateway4 makes the gateway reachable; the kernel accepts a next hop only if it has a route to it. The permanent
// neighbour entry is for hosts without a default route: there proxy ARP does not answer for the gateway.
func (w *wiring) gateway4() error {
	if err := w.addRoute(&netlink.Route{
		LinkIndex: w.inside.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(netip.PrefixFrom(gateway4, 32)),
	}); err != nil {
		return err
	}
	if err := w.pod.NeighSet(&netlink.Neigh{
		LinkIndex: w.inside.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: gateway4.AsSlice(), HardwareAddr: hostMAC,
	}); err != nil {
		return fmt.Errorf("neighbour %s in %s: %w", gateway4, w.Netns, err)
	}
	return nil
}

// gateway6 gives the host end the address that workloads use as gateway. The kernel derives the same one from the
// hardware address, but later, and not under every addr_gen_mode.
func (w *wiring) gateway6() error {
	err := w.host.AddrAdd(w.outside, &netlink.Addr{
		IPNet: &net.IPNet{IP: gateway6.AsSlice(), Mask: net.CIDRMask(64, 128)},
		Flags: unix.IFA_F_NODAD, Scope: int(netlink.SCOPE_LINK),
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s on %s: %w", gateway6, w.HostIf, err)
	}
	return nil
}

func (w *wiring) routes() error {
	for _, dst := range w.Routes {
		gateway := gateway6
		if dst.Addr().Is4() {
			gateway = gateway4
		}
		if err := w.addRoute(&netlink.Route{
			LinkIndex: w.inside.Attrs().Index, Dst: ipNet(dst), Gw: gateway.AsSlice(),
		}); err != nil {
			return err
		}
	}
	return nil
}

func (w *wiring) addRoute(r *netlink.Route) error {
	if err := w.pod.RouteAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route %s in %s: %w", r, w.Netns, err)
	}
	return nil
}

func (w *wiring) addresses() error {
	for _, a := range w.Addresses {
		addr := &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := w.pod.AddrAdd(w.inside, addr); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s on %s in %s: %w", a, w.IfName, w.Netns, err)
		}
	}
	return nil
}

// settleMAC restores the host end's hardware address where something on the host (udev's link policy) changed it.
func (w *wiring) settleMAC() error {
	const tries = 50
	for i := 0; ; i++ {
		link, err := w.host.LinkByName(w.HostIf)
		if err != nil {
			return fmt.Errorf("read %s: %w", w.HostIf, err)
		}
		if bytes.Equal(link.Attrs().HardwareAddr, hostMAC) {
			return nil
		}
		if i == tries {
			return fmt.Errorf("%s has hardware address %s: something on this host keeps changing it from %s",
				w.HostIf, link.Attrs().HardwareAddr, hostMAC)
		}
		if err := w.host.LinkSetHardwareAddr(link, hostMAC); err != nil {
			return fmt.Errorf("%s: set hardware address: %w", w.HostIf, err)
		}
		if i > 0 {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (w *wiring) hostRoutes() error {
	for _, a := range w.Addresses {
		r := netlink.Route{
			LinkIndex: w.outside.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: ipNet(netip.PrefixFrom(a, a.BitLen())),
			Protocol: netlink.RouteProtocol(w.HostRoute.Protocol), Priority: w.HostRoute.Metric,
		}
		err := w.host.RouteAdd(&r)
		if errors.Is(err, unix.EEXIST) {
			err = w.ownHostRoute(a)
		}
		if err != nil {
			return fmt.Errorf("route to %s by %s: %w", a, w.HostIf, err)
		}
	}
	return nil
}

// forgetNeighbours has the kernel resolve the workload's addresses anew. A packet that came before the workload had its
// address left an unanswered entry, and the kernel repeats such a request only after a second.
func (w *wiring) forgetNeighbours() error {
	for _, a := range w.Addresses {
		family := unix.AF_INET
		if a.Is6() {
			family = unix.AF_INET6
		}
		err := w.host.NeighDel(&netlink.Neigh{LinkIndex: w.outside.Attrs().Index, Family: family, IP: a.AsSlice()})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("neighbour %s of %s: %w", a, w.HostIf, err)
		}
	}
	return nil
}

// ownHostRoute accepts an existing route if it is the desired one: the agent may have been faster.
func (w *wiring) ownHostRoute(a netip.Addr) error {
	r, err := hostRouteTo(w.host, a)
	if err != nil {
		return err
	}
	if r == nil {
		return unix.EEXIST
	}
	if r.LinkIndex == w.outside.Attrs().Index {
		return nil
	}
	name := fmt.Sprintf("interface %d", r.LinkIndex)
	if l, err := w.host.LinkByIndex(r.LinkIndex); err == nil {
		name = l.Attrs().Name
	}
	return fmt.Errorf("this host already routes that address to %s", name)
}

// hostRouteTo queries the kernel for its preferred route to exactly a; nil if there is none. It does not read the
// table, which may hold 100,000 others.
func hostRouteTo(h *netlink.Handle, a netip.Addr) (*netlink.Route, error) {
	routes, err := h.RouteGetWithOptions(a.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL) {
		return nil, nil // no route, or a blackhole
	}
	if err != nil {
		return nil, fmt.Errorf("look up the route to %s: %w", a, err)
	}
	for _, r := range routes {
		if ones, bits := r.Dst.Mask.Size(); ones == bits {
			return &r, nil
		}
	}
	return nil, nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
