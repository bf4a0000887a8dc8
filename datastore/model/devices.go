package model

// Calico's encapsulation devices. A node has at most one of each.
const (
	DeviceIPIP        = "tunl0"
	DeviceVXLAN       = "vxlan.calico"
	DeviceVXLANV6     = "vxlan-v6.calico"
	DeviceWireguard   = "wireguard.cali"
	DeviceWireguardV6 = "wg-v6.cali"
)
