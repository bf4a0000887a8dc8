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

var interfacePrefixes = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,15}(\s*,\s*[a-zA-Z0-9_-]{1,15})*$`)

// InterfacePrefixRule says which texts IsInterfacePrefixes accepts.
const InterfacePrefixRule = "must be beginnings of interfaces' names, separated by commas, each of 1 to 15 letters, " +
	"digits, '_' and '-'"

// IsInterfacePrefixes reports whether a text is a list of beginnings of interfaces' names, by Felix's rule. Blanks
// beside the commas do not matter.
func IsInterfacePrefixes(text string) bool { return interfacePrefixes.MatchString(text) }

// IsInterfaceName reports whether Linux allows an interface of that name and Calico does, too.
func IsInterfaceName(name string) bool {
	return interfaceName.MatchString(name) && name != "." && name != ".."
}
