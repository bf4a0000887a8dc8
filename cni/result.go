package cni

import (
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/manxnet/manx/dataplane/podnet"
)

// attachment returns the result of an ADD: both ends of the interface and the addresses of the container's end.
func attachment(pod podnet.Pod, mac net.HardwareAddr, routes []*types.Route) *current.Result {
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: pod.HostIf},
			{Name: pod.IfName, Mac: mac.String(), Mtu: pod.MTU, Sandbox: pod.Netns},
		},
		Routes: routes,
	}
	for _, a := range pod.Addresses {
		r.IPs = append(r.IPs, &current.IPConfig{Interface: current.Int(1), Address: hostNet(a)})
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
