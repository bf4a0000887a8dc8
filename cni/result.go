package cni

import (
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// ResultText returns the result of the ADD of a request, in the version of its configuration. The addresses must be of
// this program's IPAM.
func ResultText(conf *Config, q *Request) (string, error) {
	a := q.Attachment
	r, err := attached(q.IfName, q.Netns, a, a.MAC, blockRoutes(a.Assigned)).GetAsVersion(conf.CNIVersion)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = r.PrintTo(&text)
	return text.String(), err
}

// attached returns the result of an ADD: both ends of the interface and the addresses of the container's end.
func attached(ifName, netns string, a *Attachment, mac string, routes []*types.Route) *current.Result {
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: a.HostIf},
			{Name: ifName, Mac: mac, Mtu: a.MTU, Sandbox: netns},
		},
		Routes: routes,
	}
	for _, ip := range a.Addresses {
		r.IPs = append(r.IPs, &current.IPConfig{Interface: current.Int(1), Address: hostNet(ip)})
	}
	return r
}

func hostNet(a netip.Addr) net.IPNet {
	return net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// assignment returns the result of an IPAM ADD; the addresses carry the prefix length of their block.
func assignment(got []netip.Prefix) *current.Result {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion, Routes: blockRoutes(got)}
	for _, p := range got {
		r.IPs = append(r.IPs, &current.IPConfig{Address: ipNet(p)})
	}
	return r
}

// blockRoutes returns the routes of an IPAM result, as Calico's plugin does.
func blockRoutes(got []netip.Prefix) []*types.Route {
	var routes []*types.Route
	for _, p := range got {
		routes = append(routes, &types.Route{Dst: ipNet(p)})
	}
	return routes
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
