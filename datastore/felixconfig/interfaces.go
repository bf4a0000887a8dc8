package felixconfig

import (
	"fmt"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// DefaultInterfacePrefix is the prefix of workloads' interfaces on a host unless FelixConfiguration sets
// interfacePrefix.
const DefaultInterfacePrefix = "cali"

// InterfacePrefixes are the prefixes of workloads' interfaces on a host.
type InterfacePrefixes []string

// ParseInterfacePrefixes parses interfacePrefix of FelixConfiguration: prefixes separated by commas.
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

// Match reports whether an interface of that name is a workload's.
func (p InterfacePrefixes) Match(iface string) bool {
	return slices.ContainsFunc(p, func(prefix string) bool { return strings.HasPrefix(iface, prefix) })
}

// PrefixSource names the place that sets interfacePrefix for a node, such as "FelixConfiguration/default". local are
// the settings of this host, with those of flags; nil: none.
func PrefixSource(r model.Reader, node string, local *Local) string {
	source := "the default"
	for name, f := range Applicable(r, node) {
		if f.Spec.InterfacePrefix != "" {
			source = "FelixConfiguration/" + name
		}
	}
	if local == nil || local.Spec.InterfacePrefix == "" {
		return source
	}
	for _, v := range local.Values {
		if v.Parameter.Field == "interfacePrefix" && v.Text == local.Spec.InterfacePrefix {
			return v.Source
		}
	}
	return "--interface-prefix"
}

// Stray reports whether an interface that an endpoint names would be a workload's with other prefixes alone.
func (p InterfacePrefixes) Stray(iface string) bool {
	return model.IsInterfaceName(iface) && !slices.Contains(neverWorkloads, iface) && !p.Match(iface)
}

// neverWorkloads are interfaces of the host, and the kernel's names for the settings of all interfaces.
var neverWorkloads = []string{
	"all", "default", "lo", model.DeviceIPIP, model.DeviceVXLAN, model.DeviceVXLANV6, model.DeviceWireguard,
	model.DeviceWireguardV6,
}

// Refuse returns the reason why the interface of a WorkloadEndpoint must not be configured, empty if it may be. A
// writer of the endpoint could otherwise give the host's own interfaces routes, rules and settings.
func (p InterfacePrefixes) Refuse(iface string) string {
	const nothing = "the endpoint gets no route, no rules and no settings: "
	switch {
	case !model.IsInterfaceName(iface):
		return fmt.Sprintf("%sinterfaceName %q is no name of an interface", nothing, iface)
	case slices.Contains(neverWorkloads, iface):
		return fmt.Sprintf("%sinterfaceName %q is never a workload's", nothing, iface)
	case !p.Match(iface):
		return fmt.Sprintf("%sinterfaceName %q does not begin with %s (interfacePrefix of FelixConfiguration)", nothing,
			iface, p)
	}
	return ""
}

// String returns the prefixes for messages: "cali" or "tap".
func (p InterfacePrefixes) String() string {
	quoted := make([]string, len(p))
	for i, prefix := range p {
		quoted[i] = fmt.Sprintf("%q", prefix)
	}
	return strings.Join(quoted, " or ")
}
