package podnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
	"github.com/manxnet/manx/dataplane/kernel/device"
)

func (w *wiring) removeOld() error {
	old, err := w.host.LinkByName(w.HostIf)
	if device.Missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read interface %s: %w", w.HostIf, err)
	}
	if err := w.refuseForeign(old); err != nil {
		return err
	}
	return removeVeth(w.host, w.HostIf)
}

// refuseForeign fails if old, an interface of the host end's name, leads to where it must not be removed.
func (w *wiring) refuseForeign(old netlink.Link) error {
	id, err := w.host.GetNetNsIdByFd(w.ns.fd)
	if err != nil {
		return fmt.Errorf("identify %s: %w", w.Netns, err)
	}
	if old.Attrs().NetNsID != id || id < 0 {
		if w.Exclusive {
			return fmt.Errorf("interface %s exists and belongs to another container", w.HostIf)
		}
		return nil
	}
	if err := w.reach(); err != nil {
		return err
	}
	inside, err := w.pod.LinkByIndex(old.Attrs().ParentIndex)
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
	attrs.Name, attrs.MTU, attrs.HardwareAddr = w.HostIf, w.MTU, hostMAC
	if w.Queues > 1 {
		attrs.NumTxQueues, attrs.NumRxQueues = w.Queues, w.Queues
	}
	veth := netlink.NewVeth(attrs) // the other end has the same MTU and queues
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = w.IfName, w.MAC, netlink.NsFd(w.ns.fd)
	err := w.host.LinkAdd(veth)
	if err != nil {
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s exists in %s and is not an interface of ours: %w", w.IfName, w.Netns, err)
		}
		return fmt.Errorf("veth %s with peer %s in %s: %w", w.HostIf, w.IfName, w.Netns, err)
	}
	if w.outside, err = w.host.LinkByName(w.HostIf); err != nil {
		w.outside = nil
		return errors.Join(fmt.Errorf("read %s: %w", w.HostIf, err), removeVeth(w.host, w.HostIf))
	}
	if peer := w.outside.Attrs().ParentIndex; w.MAC != nil && peer > 0 {
		w.inside = device.At(peer)
		w.inside.Attrs().HardwareAddr = w.MAC
		return nil
	}
	if err := w.reach(); err != nil {
		return err
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
	err := w.addRoute(netlink.Route{Dst: device.IPNet(netip.PrefixFrom(gateway4, 32)), Scope: unix.RT_SCOPE_LINK})
	if err != nil {
		return err
	}
	return w.gatewayIs(gateway4)
}

// gatewayIs gives the workload the permanent neighbour entry of a gateway. It has no origin: nothing reads one there.
func (w *wiring) gatewayIs(a netip.Addr) error {
	err := w.pod.NeighSet(&netlink.Neigh{LinkIndex: w.inside.Attrs().Index, State: unix.NUD_PERMANENT,
		IP: a.AsSlice(), HardwareAddr: hostMAC})
	if err != nil {
		return fmt.Errorf("neighbour %s in %s: %w", a, w.Netns, err)
	}
	return nil
}

// gateway6 gives the host end the address that workloads use as gateway. The kernel derives the same one from the
// hardware address, but later, and not under every addr_gen_mode. Without its permanent entry the workload could
// neither ask for the gateway nor answer it while the kernel's neighbour table, one for all namespaces of a host, is
// full.
func (w *wiring) gateway6() error {
	err := w.host.AddrAdd(w.outside, &netlink.Addr{IPNet: device.IPNet(netip.PrefixFrom(gateway6, 64)),
		Flags: unix.IFA_F_NODAD, Scope: unix.RT_SCOPE_LINK})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s on %s: %w", gateway6, w.HostIf, err)
	}
	return w.gatewayIs(gateway6)
}

func (w *wiring) routes() error {
	for _, dst := range w.Routes {
		if err := w.addRoute(netlink.Route{Dst: device.IPNet(dst), Gw: gatewayOf(dst).AsSlice()}); err != nil {
			return err
		}
	}
	return nil
}

// gatewayOf returns the gateway of a workload's route.
func gatewayOf(dst netip.Prefix) netip.Addr {
	if dst.Addr().Is4() {
		return gateway4
	}
	return gateway6
}

// addRoute makes a route of the workload.
func (w *wiring) addRoute(r netlink.Route) error {
	r.LinkIndex, r.Protocol = w.inside.Attrs().Index, unix.RTPROT_BOOT
	if err := w.pod.RouteAdd(&r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route to %s in %s: %w", r.Dst, w.Netns, err)
	}
	return nil
}

func (w *wiring) addresses() error {
	for _, a := range w.Addresses {
		address := netlink.Addr{IPNet: device.IPNet(netip.PrefixFrom(a, a.BitLen()))}
		if a.Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		err := w.pod.AddrAdd(w.inside, &address)
		if err != nil && !errors.Is(err, unix.EEXIST) {
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

// forgetConnections deletes what the kernel knows of connections with whoever had the addresses before: established
// ones pass regardless of policy. Where a route to this interface is there, the agent was faster, and forgot them.
func (w *wiring) forgetConnections() error {
	var fresh []netip.Addr
	for _, a := range w.Addresses {
		r, err := routeTo(w.host, a)
		if err != nil {
			return err
		}
		if r == nil || r.LinkIndex != w.outside.Attrs().Index {
			fresh = append(fresh, a)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if _, err := conntrack.New(nil).ForgetConnections(fresh); err != nil {
		// A kernel that does not track connections, or does not show them, refuses this.
		w.warn("connections of whoever had the addresses before may go on", err)
	}
	return nil
}

func (w *wiring) hostRoutes() error {
	for _, a := range w.Addresses {
		err := w.host.RouteAdd(&netlink.Route{Dst: device.IPNet(netip.PrefixFrom(a, a.BitLen())),
			LinkIndex: w.outside.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Priority: w.HostRoute.Metric,
			Protocol: netlink.RouteProtocol(w.HostRoute.Protocol)})
		if errors.Is(err, unix.EEXIST) {
			err = w.ownHostRoute(a)
		}
		if err != nil {
			return fmt.Errorf("route to %s by %s: %w", a, w.HostIf, err)
		}
	}
	return nil
}

// protocolCalico is the origin of the entries for workloads, by which the agent recognises its own.
const protocolCalico = 80

// setNeighbours makes permanent entries for the workload's addresses: other workloads can fill the kernel's neighbour
// table, and such entries need no room in it. They also replace unanswered ones of packets that came before the
// workload had its addresses, which the kernel would ask for again only after a second. The agent keeps them.
func (w *wiring) setNeighbours() error {
	for _, a := range w.Addresses {
		err := w.known.Set(w.outside.Attrs().Index, a, w.inside.Attrs().HardwareAddr, protocolCalico)
		if err != nil {
			return fmt.Errorf("neighbour %s of %s: %w", a, w.HostIf, err)
		}
	}
	return nil
}

// ownHostRoute accepts an existing route if it is the desired one: the agent may have been faster.
func (w *wiring) ownHostRoute(a netip.Addr) error {
	r, err := routeTo(w.host, a)
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
