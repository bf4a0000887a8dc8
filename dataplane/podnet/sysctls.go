package podnet

import "os"

// hostSysctls makes the host end a router that answers for the gateway. They are set before the interface is up, so
// that no packet meets other settings.
func (w *wiring) hostSysctls(v4, v6 bool) error {
	name := w.HostIf
	if v4 {
		// Without a delay of zero the kernel waits up to 0.8 s before it answers for another's address.
		if err := setSysctl("0", "ipv4", "neigh", name, "proxy_delay"); err != nil {
			w.warn("proxy ARP answers may be late", err)
		}
		for _, s := range []string{"route_localnet", "proxy_arp", "forwarding"} {
			if err := setSysctl("1", "ipv4", "conf", name, s); err != nil {
				return err
			}
		}
	}
	if !hasIPv6() {
		return nil
	}
	// A workload must not configure its host by router advertisements.
	if err := setSysctl("0", "ipv6", "conf", name, "accept_ra"); err != nil {
		w.warn("router advertisements of the workload are not ignored", err)
	}
	if v6 {
		for _, s := range [][2]string{{"disable_ipv6", "0"}, {"accept_dad", "0"}, {"proxy_ndp", "1"},
			{"forwarding", "1"}} {
			if err := setSysctl(s[1], "ipv6", "conf", name, s[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

// insideSysctls runs inside the workload's namespace.
func (w *wiring) insideSysctls(v4, v6 bool) error {
	forwarding := "0"
	if w.Forwarding {
		forwarding = "1"
	}
	if v4 {
		if err := setSysctl(forwarding, "ipv4", "ip_forward"); err != nil {
			return err
		}
	}
	if !v6 {
		return nil
	}
	for _, s := range [][3]string{
		{"all", "disable_ipv6", "0"}, {"default", "disable_ipv6", "0"}, {"lo", "disable_ipv6", "0"},
		{w.IfName, "disable_ipv6", "0"},
		{w.IfName, "accept_dad", "0"}, // the address is unique by allocation; waiting would cost a second
		{"all", "forwarding", forwarding},
	} {
		if err := setSysctl(s[2], "ipv6", "conf", s[0], s[1]); err != nil {
			return err
		}
	}
	return nil
}

func hasIPv6() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
}
