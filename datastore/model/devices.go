package model

import "regexp"

// Calico's encapsulation devices. A node has at most one of each.
const (
	DeviceIPIP        = "tunl0"
	DeviceVXLAN       = "vxlan.calico"
	DeviceVXLANV6     = "vxlan-v6.calico"
	DeviceWireguard   = "wireguard.cali"
	DeviceWireguardV6 = "wg-v6.cali"
)

// AllInterfaces as interfaceName of a HostEndpoint selects all interfaces of the host except those of workloads.
const AllInterfaces = "*"

var interfaceName = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,15}$`)

// IsInterfaceName reports whether Linux allows an interface of that name and Calico does, too.
func IsInterfaceName(name string) bool {
	return interfaceName.MatchString(name) && name != "." && name != ".."
}
