package main

import (
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/manxnet/manx/dataplane/kernel"
)

// attachment is the result of an ADD: both ends of the interface and the addresses on the container's.
func attachment(pod kernel.Pod, mac net.HardwareAddr, routes []*types.Route) *current.Result {
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

// print writes a result in the version that the runtime asked for.
func (c *call) print(r *current.Result) error {
	converted, err := r.GetAsVersion(c.conf.CNIVersion)
	if err != nil {
		return err
	}
	return converted.PrintTo(c.stdout)
}
