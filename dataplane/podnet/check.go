package podnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
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
	if w.outside, err = w.host.named(w.HostIf); err != nil {
		return fmt.Errorf("interface %s is missing on the host: %w", w.HostIf, err)
	}
	if w.inside, err = w.pod.named(w.IfName); err != nil {
		return fmt.Errorf("interface %s is missing in %s: %w", w.IfName, w.Netns, err)
	}
	out, in := w.outside, w.inside
	var problems []error
	if out.kind != "veth" || in.kind != "veth" || out.peer != in.index || in.peer != out.index {
		problems = append(problems, fmt.Errorf("%s is not the other end of %s in %s", w.HostIf, w.IfName, w.Netns))
	}
	if !out.up {
		problems = append(problems, fmt.Errorf("%s is down", w.HostIf))
	}
	if !in.up {
		problems = append(problems, fmt.Errorf("%s in %s is down", w.IfName, w.Netns))
	}
	if !bytes.Equal(out.mac, hostMAC) {
		problems = append(problems, fmt.Errorf("%s has hardware address %s, want %s", w.HostIf, out.mac,
			hostMAC))
	}
	if w.MAC != nil && !bytes.Equal(in.mac, w.MAC) {
		problems = append(problems, fmt.Errorf("%s in %s has hardware address %s, want %s", w.IfName, w.Netns,
			in.mac, w.MAC))
	}
	return errors.Join(problems...)
}

func (w *wiring) checkInside() error {
	has, err := w.pod.addresses(w.inside)
	if err != nil {
		return fmt.Errorf("addresses of %s in %s: %w", w.IfName, w.Netns, err)
	}
	var problems []error
	for _, a := range w.Addresses {
		if !has[a] {
			problems = append(problems, fmt.Errorf("%s in %s lacks address %s", w.IfName, w.Netns, a))
		}
	}
	routes, err := w.pod.routes()
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

func (w *wiring) hasRoute(routes []route, dst netip.Prefix) bool {
	gateway := gateway6
	if dst.Addr().Is4() {
		gateway = gateway4
	}
	return slices.ContainsFunc(routes, func(r route) bool {
		return r.link == w.inside.index && r.gateway == gateway && r.dst == dst
	})
}

func (w *wiring) checkHostRoutes() error {
	if w.Routed {
		return nil
	}
	var problems []error
	for _, a := range w.Addresses {
		r, err := w.host.routeTo(a)
		if err != nil || r == nil || r.link != w.outside.index {
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
