package bgp

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// addKernelRoutes adds the routes of the kernel to those that the node may announce. What it announces anyway stays as
// it is. The priority of a route is its metric, so that peers prefer the routes that the kernel prefers. As in
// calico/node, a connected network comes before what BGP has learned for the prefix, and any other route behind it.
func (c *cluster) addKernelRoutes(origins map[netip.Prefix]Origin) {
	for _, k := range c.kernel {
		if _, taken := origins[k.Prefix]; taken || c.ignoresKernel(k) {
			continue
		}
		o := Origin{Prefix: k.Prefix, Interface: k.Interface, Kernel: true, Yields: !k.Connected}
		if !k.Connected {
			o.LocalPref = MaxPriority - min(k.Metric, MaxPriority-1)
		}
		origins[k.Prefix] = o
	}
}

// ignoresKernel reports whether a route is none to announce: through a device of the overlay, all of whose routes are
// those of blocks, or to a workload with the protocol of Manx' own, or a network that ignoredInterfaces leaves out, or
// one of workloads or of kube-proxy.
func (c *cluster) ignoresKernel(k KernelRoute) bool {
	switch k.Interface {
	case model.DeviceIPIP, model.DeviceVXLAN, model.DeviceVXLANV6, model.DeviceWireguard, model.DeviceWireguardV6:
		return true
	}
	ofWorkload := k.Interface != "" && c.interfaces.Refuse(k.Interface) == ""
	if own := c.felix.DeviceRouteProtocol; ofWorkload && own != nil && int(k.Protocol) == *own {
		return true
	}
	return k.Connected && (ofWorkload || strings.HasPrefix(k.Interface, "kube-ipvs") ||
		slices.ContainsFunc(c.config.IgnoredInterfaces, func(pattern string) bool {
			ok, err := path.Match(pattern, k.Interface)
			return ok && err == nil
		}))
}
