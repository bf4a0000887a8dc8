package model

import (
	"fmt"
	"net/netip"
)

// ParsePeerIP parses the peerIP field of a BGPPeer: IPv4, IPv4:PORT, IPv6 or [IPv6]:PORT. The port is 0 if there is
// none. An IPv4 address in IPv6 form is an IPv4 address.
func ParsePeerIP(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		return netip.AddrPortFrom(a.Unmap(), 0), nil
	}
	ap, err := netip.ParseAddrPort(text)
	if err != nil || ap.Addr().Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("must be an IP address, IPv4:PORT or [IPv6]:PORT, with a port " +
			"from 1 to 65535")
	}
	if ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("the port must be from 1 to 65535")
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}
