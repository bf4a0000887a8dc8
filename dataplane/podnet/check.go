package podnet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/manxnet/manx/dataplane/kernel/device"
)

// Check compares the result of Attach with the present state and returns every difference that would keep packets from
// flowing, or nil. It changes nothing.
func Check(p Pod) error {
	w, err := open(p, Options{})
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.reach(); err != nil {
		return err
	}
	if err := w.checkLinks(); err != nil {
		return err
	}
	return errors.Join(w.checkInside(), w.checkHostRoutes(), w.checkHostSysctls())
}

// checkLinks finds both ends and makes sure that they belong together.
func (w *wiring) checkLinks() error {
	var err error
	if w.outside, err = w.host.LinkByName(w.HostIf); err != nil {
		return fmt.Errorf("interface %s is missing on the host: %w", w.HostIf, err)
	}
	if w.inside, err = w.pod.LinkByName(w.IfName); err != nil {
		return fmt.Errorf("interface %s is missing in %s: %w", w.IfName, w.Netns, err)
	}
	out, in := w.outside.Attrs(), w.inside.Attrs()
	var problems []error
	if w.outside.Type() != "veth" || w.inside.Type() != "veth" ||
		out.ParentIndex != in.Index || in.ParentIndex != out.Index {
		problems = append(problems, fmt.Errorf("%s is not the other end of %s in %s", w.HostIf, w.IfName, w.Netns))
	}
	if out.Flags&net.FlagUp == 0 {
		problems = append(problems, fmt.Errorf("%s is down", w.HostIf))
	}
	if in.Flags&net.FlagUp == 0 {
		problems = append(problems, fmt.Errorf("%s in %s is down", w.IfName, w.Netns))
	}
	if !bytes.Equal(out.HardwareAddr, hostMAC) {
		problems = append(problems, fmt.Errorf("%s has hardware address %s, want %s", w.HostIf, out.HardwareAddr,
			hostMAC))
	}
	if w.MAC != nil && !bytes.Equal(in.HardwareAddr, w.MAC) {
		problems = append(problems, fmt.Errorf("%s in %s has hardware address %s, want %s", w.IfName, w.Netns,
			in.HardwareAddr, w.MAC))
	}
	return errors.Join(problems...)
}

func (w *wiring) checkInside() error {
	has, err := device.Whole(func() ([]netlink.Addr, error) { return w.pod.AddrList(w.inside, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("addresses of %s in %s: %w", w.IfName, w.Netns, err)
	}
	var problems []error
	for _, a := range w.Addresses {
		if !slices.ContainsFunc(has, func(h netlink.Addr) bool { return device.Prefix(h.IPNet).Addr() == a }) {
			problems = append(problems, fmt.Errorf("%s in %s lacks address %s", w.IfName, w.Netns, a))
		}
	}
	routes, err := device.Whole(func() ([]netlink.Route, error) {
		return w.pod.RouteList(w.inside, netlink.FAMILY_ALL)
	})
	if err != nil {
		return errors.Join(append(problems, fmt.Errorf("routes of %s: %w", w.Netns, err))...)
	}
	for _, dst := range w.Routes {
		if !w.hasRoute(routes, dst) {
			problems = append(problems, fmt.Errorf("%s lacks the route to %s through the gateway", w.Netns, dst))
		}
	}
	return errors.Join(problems...)
}

func (w *wiring) hasRoute(routes []netlink.Route, dst netip.Prefix) bool {
	return slices.ContainsFunc(routes, func(r netlink.Route) bool {
		return device.Gateway(&r) == gatewayOf(dst) && device.Prefix(r.Dst) == dst
	})
}

func (w *wiring) checkHostRoutes() error {
	if w.Routed {
		return nil
	}
	var problems []error
	for _, a := range w.Addresses {
		r, err := routeTo(w.host, a)
		if err != nil || r == nil || r.LinkIndex != w.outside.Attrs().Index {
			problems = append(problems, errors.Join(fmt.Errorf("this host has no route to %s by %s", a, w.HostIf), err))
		}
	}
	return errors.Join(problems...)
}

func (w *wiring) checkHostSysctls() error {
	v4, v6 := w.families()
	var want []string
	if v4 {
		want = append(want, "ipv4/conf/%/proxy_arp", "ipv4/conf/%/forwarding")
	}
	if v6 {
		want = append(want, "ipv6/conf/%/forwarding")
	}
	var problems []error
	for _, name := range want {
		file := filepath.Join("/proc/sys/net", strings.Replace(name, "%", w.HostIf, 1))
		if !sysctlIs(file, "1") {
			problems = append(problems, fmt.Errorf("%s is not 1", file))
		}
	}
	return errors.Join(problems...)
}
