package model

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultInterfacePrefix begins the names of workloads' interfaces on a host where interfacePrefix of
// FelixConfiguration says nothing.
const DefaultInterfacePrefix = "cali"

// InterfacePrefixes are what the names of workloads' interfaces on a host begin with.
type InterfacePrefixes []string

// ParseInterfacePrefixes reads interfacePrefix of FelixConfiguration: prefixes separated by commas.
func ParseInterfacePrefixes(text string) InterfacePrefixes {
	var list InterfacePrefixes
	for p := range strings.SplitSeq(text, ",") {
		if p = strings.TrimSpace(p); p != "" {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		return InterfacePrefixes{DefaultInterfacePrefix}
	}
	return list
}

// Match tells whether an interface of that name is a workload's.
func (p InterfacePrefixes) Match(iface string) bool {
	return slices.ContainsFunc(p, func(prefix string) bool { return strings.HasPrefix(iface, prefix) })
}

// neverWorkloads are interfaces of the host itself, and the names under which the kernel has settings for all
// interfaces.
var neverWorkloads = []string{
	"all", "default", "lo", DeviceIPIP, DeviceVXLAN, DeviceVXLANV6, DeviceWireguard, DeviceWireguardV6,
}

// Refuse returns why an interface that a WorkloadEndpoint names must not be touched on its behalf, empty if it may be.
// Whoever can write the endpoint could otherwise give the host's own interfaces routes, rules and settings.
func (p InterfacePrefixes) Refuse(iface string) string {
	const nothing = "the endpoint gets no route, no rules and no settings: "
	switch {
	case !interfaceFormat.MatchString(iface) || iface == "." || iface == "..":
		return fmt.Sprintf("%sinterfaceName %q is no name of an interface", nothing, iface)
	case slices.Contains(neverWorkloads, iface):
		return fmt.Sprintf("%sinterfaceName %q is never a workload's", nothing, iface)
	case !p.Match(iface):
		return fmt.Sprintf("%sinterfaceName %q does not begin with %s (interfacePrefix of FelixConfiguration)", nothing,
			iface, p)
	}
	return ""
}

// String is for people: "cali" or "tap".
func (p InterfacePrefixes) String() string {
	quoted := make([]string, len(p))
	for i, prefix := range p {
		quoted[i] = fmt.Sprintf("%q", prefix)
	}
	return strings.Join(quoted, " or ")
}
