package podnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/conntrack"
)

func (w *wiring) removeOld() error {
	old, err := w.host.named(w.HostIf)
	if linkMissing(err) {
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
func (w *wiring) refuseForeign(old link) error {
	id, err := w.host.numberOf(w.ns.fd)
	if err != nil {
		return fmt.Errorf("identify %s: %w", w.Netns, err)
	}
	if old.namespace != id || id < 0 {
		if w.Exclusive {
			return fmt.Errorf("interface %s exists and belongs to another container", w.HostIf)
		}
		return nil
	}
	if err := w.reach(); err != nil {
		return err
	}
	inside, err := w.pod.numbered(old.peer)
	if err == nil && inside.name != w.IfName {
		return fmt.Errorf("%s is the other end of %s in %s: a container can have one interface of this network, "+
			"not also %s",
			w.HostIf, inside.name, w.Netns, w.IfName)
	}
	return nil
}

// create makes both ends at once, each in its namespace and with its final hardware address, so that no program (udev)
// sees an unfinished interface.
func (w *wiring) create() error {
	err := w.host.addVeth(end{w.HostIf, w.MTU, w.Queues, hostMAC}, end{w.IfName, w.MTU, w.Queues, w.MAC}, w.ns.fd)
	if err != nil {
		if errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("%s exists in %s and is not an interface of ours: %w", w.IfName, w.Netns, err)
		}
		return fmt.Errorf("veth %s with peer %s in %s: %w", w.HostIf, w.IfName, w.Netns, err)
	}
	if w.outside, err = w.host.named(w.HostIf); err != nil {
		return errors.Join(fmt.Errorf("read %s: %w", w.HostIf, err), removeVeth(w.host, w.HostIf))
	}
	if w.MAC != nil && w.outside.peer > 0 {
		w.inside = link{index: w.outside.peer, name: w.IfName, mac: w.MAC}
		return nil
	}
	if err := w.reach(); err != nil {
		return err
	}
	if w.inside, err = w.pod.named(w.IfName); err != nil {
		return fmt.Errorf("read %s in %s: %w", w.IfName, w.Netns, err)
	}
	return nil
}

func (w *wiring) up() error {
	if err := w.host.bringUp(w.outside); err != nil {
		return fmt.Errorf("%s: %w", w.HostIf, err)
	}
	if err := w.pod.bringUp(w.inside); err != nil {
		return fmt.Errorf("%s in %s: %w", w.IfName, w.Netns, err)
	}
	return nil
}

// gateway4 makes the gateway reachable; the kernel accepts a next hop only if it has a route to it. The permanent
// neighbour entry is for hosts without a default route: there proxy ARP does not answer for the gateway.
func (w *wiring) gateway4() error {
	if err := w.addRoute(route{dst: netip.PrefixFrom(gateway4, 32), scope: unix.RT_SCOPE_LINK}); err != nil {
		return err
	}
	if err := w.pod.setNeighbour(w.inside, gateway4, hostMAC); err != nil {
		return fmt.Errorf("neighbour %s in %s: %w", gateway4, w.Netns, err)
	}
	return nil
}

// gateway6 gives the host end the address that workloads use as gateway. The kernel derives the same one from the
// hardware address, but later, and not under every addr_gen_mode. Without its permanent entry the workload could
// neither ask for the gateway nor answer it while the kernel's neighbour table, one for all namespaces of a host, is
// full.
func (w *wiring) gateway6() error {
	err := w.host.addAddress(w.outside, netip.PrefixFrom(gateway6, 64), unix.IFA_F_NODAD, unix.RT_SCOPE_LINK)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s on %s: %w", gateway6, w.HostIf, err)
	}
	if err := w.pod.setNeighbour(w.inside, gateway6, hostMAC); err != nil {
		return fmt.Errorf("neighbour %s in %s: %w", gateway6, w.Netns, err)
	}
	return nil
}

func (w *wiring) routes() error {
	for _, dst := range w.Routes {
		gateway := gateway6
		if dst.Addr().Is4() {
			gateway = gateway4
		}
		if err := w.addRoute(route{dst: dst, gateway: gateway}); err != nil {
			return err
		}
	}
	return nil
}

// addRoute makes a route of the workload.
func (w *wiring) addRoute(r route) error {
	r.link, r.protocol = w.inside.index, unix.RTPROT_BOOT
	if err := w.pod.addRoute(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("route to %s in %s: %w", r.dst, w.Netns, err)
	}
	return nil
}

func (w *wiring) addresses() error {
	for _, a := range w.Addresses {
		flags := byte(0)
		if a.Is6() {
			flags = unix.IFA_F_NODAD
		}
		err := w.pod.addAddress(w.inside, netip.PrefixFrom(a, a.BitLen()), flags, unix.RT_SCOPE_UNIVERSE)
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
		link, err := w.host.named(w.HostIf)
		if err != nil {
			return fmt.Errorf("read %s: %w", w.HostIf, err)
		}
		if bytes.Equal(link.mac, hostMAC) {
			return nil
		}
		if i == tries {
			return fmt.Errorf("%s has hardware address %s: something on this host keeps changing it from %s",
				w.HostIf, link.mac, hostMAC)
		}
		if err := w.host.setMAC(link, hostMAC); err != nil {
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
		r, err := w.host.routeTo(a)
		if err != nil {
			return err
		}
		if r == nil || r.link != w.outside.index {
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
		err := w.host.addRoute(route{dst: netip.PrefixFrom(a, a.BitLen()), link: w.outside.index,
			scope: unix.RT_SCOPE_LINK, protocol: byte(w.HostRoute.Protocol), metric: w.HostRoute.Metric})
		if errors.Is(err, unix.EEXIST) {
			err = w.ownHostRoute(a)
		}
		if err != nil {
			return fmt.Errorf("route to %s by %s: %w", a, w.HostIf, err)
		}
	}
	return nil
}

// setNeighbours makes permanent entries for the workload's addresses: other workloads can fill the kernel's neighbour
// table, and such entries need no room in it. They also replace unanswered ones of packets that came before the
// workload had its addresses, which the kernel would ask for again only after a second. The agent keeps them.
func (w *wiring) setNeighbours() error {
	for _, a := range w.Addresses {
		if err := w.host.setNeighbour(w.outside, a, w.inside.mac); err != nil {
			return fmt.Errorf("neighbour %s of %s: %w", a, w.HostIf, err)
		}
	}
	return nil
}

// ownHostRoute accepts an existing route if it is the desired one: the agent may have been faster.
func (w *wiring) ownHostRoute(a netip.Addr) error {
	r, err := w.host.routeTo(a)
	if err != nil {
		return err
	}
	if r == nil {
		return unix.EEXIST
	}
	if r.link == w.outside.index {
		return nil
	}
	name := fmt.Sprintf("interface %d", r.link)
	if l, err := w.host.numbered(r.link); err == nil {
		name = l.name
	}
	return fmt.Errorf("this host already routes that address to %s", name)
}
