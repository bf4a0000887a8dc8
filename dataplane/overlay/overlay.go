package overlay

import (
	"fmt"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Linger is how long the parts of a tunnel stay that no pool needs any more because the mode of a pool changed: the
// routes through it that nothing replaces, the nodes of IPAM's blocks for them, and its address. Nodes whose daemon is
// just being restarted learn of the change later, and send by the tunnel until then.
const Linger = 10 * time.Minute

// Overlay is an encapsulation of the packets between nodes, and the one device of a node that does it.
type Overlay struct {
	// Name is for people and messages.
	Name string
	// Encapsulation is that of the pools which the overlay is for.
	Encapsulation ippool.Encapsulation
	// Device and Kind are the name and the kind of the device. Every address of the overlay's family on it, and every
	// route of Calico's protocol through it, is the node's own to remove.
	Device, Kind string
	// Family is that of the device's addresses, and of the outer packets, which the nodes' addresses of this family may
	// send.
	Family model.Family
	// Overhead is the size of the headers that it adds, in bytes.
	Overhead int
	// NoMAC is set if neighbours on the device have no hardware addresses.
	NoMAC bool
	// Packets returns the outer packets with these settings.
	Packets func(*model.FelixConfigurationSpec) Packets
	// Parameters returns those of a VXLAN device of this node, or why it cannot have one yet; nil for other kinds.
	Parameters func(*model.FelixConfigurationSpec, *model.Node) (*VXLAN, error)
	// Settings are those of a node.
	Settings func(*model.FelixConfigurationSpec) Settings
}

// Settings are the part of FelixConfiguration about an overlay.
type Settings struct {
	// Enabled has the name of the setting, and On its value: nil for an overlay that a node has while a pool needs it.
	Enabled string
	On      *bool
	// MTUName has the name of the setting, and MTU its value, that of the device: nil or 0 for the host's less the
	// overhead.
	MTUName string
	MTU     *int
	// Shared are those in which two nodes must agree, so that each takes the outer packets of the other.
	Shared []Shared
}

// Shared is a setting of which all nodes must have one value.
type Shared struct {
	Name  string
	Value int // that is used
}

var all = []Overlay{ipip, vxlan, vxlan6, wireguard, wireguard6}

// ipip carries packets between IPv4 addresses only.
var ipip = Overlay{
	Name: "IPIP", Encapsulation: ippool.IPIP, Device: model.DeviceIPIP, Kind: "ipip", Family: model.IPv4,
	Overhead: 20, // an IPv4 header
	NoMAC:    true, Packets: ipipPackets,
	Settings: func(f *model.FelixConfigurationSpec) Settings {
		return Settings{Enabled: "ipipEnabled", On: f.IPIPEnabled, MTUName: "ipipMTU", MTU: f.IPIPMTU}
	},
}

// All returns the overlays that this version makes. The list must not be changed.
func All() []Overlay { return all }

// IsDevice reports whether an interface of that name is the device of an overlay.
func IsDevice(name string) bool {
	return slices.ContainsFunc(all, func(o Overlay) bool { return o.Device == name })
}

// NoMAC reports whether neighbours on devices of a kind have no hardware addresses.
func NoMAC(kind string) bool {
	return slices.ContainsFunc(all, func(o Overlay) bool { return o.Kind == kind && o.NoMAC })
}

// HasVTEPs reports whether the other nodes on a device have addresses of their own there: the gateway of a route
// through it is the tunnel address of a node, not the node's address.
func HasVTEPs(device string) bool {
	return slices.ContainsFunc(all, func(o Overlay) bool { return o.Device == device && o.Kind == KindVXLAN })
}

// DeviceNames returns the names of the overlays' devices.
func DeviceNames() []string {
	var names []string
	for _, o := range all {
		names = append(names, o.Device)
	}
	return names
}

// Used reports whether a node with these settings, in a cluster with these pools, has the overlay.
func (o Overlay) Used(f *model.FelixConfigurationSpec, pools ippool.Table) bool {
	if on := o.Settings(f).On; on != nil {
		return *on
	}
	return slices.ContainsFunc(pools, o.serves)
}

// Has reports whether a node with these settings and this Node, which may be nil, has the overlay: while it is used,
// and then as long as the Node has the tunnel address, since other nodes may send by it until they know better.
func (o Overlay) Has(f *model.FelixConfigurationSpec, pools ippool.Table, own *model.Node) bool {
	on := o.Settings(f).On
	return o.Used(f, pools) || on == nil && own.TunnelAddress(o.Device).IsValid()
}

// serves reports whether the overlay is the one that a pool needs.
func (o Overlay) serves(p ippool.Pool) bool {
	return p.Encapsulation() == o.Encapsulation && p.CIDR.Addr().Is4() == (o.Family == model.IPv4)
}

// UsedDevice reports whether the overlay of a device is Used.
func UsedDevice(name string, f *model.FelixConfigurationSpec, pools ippool.Table) bool {
	return slices.ContainsFunc(all, func(o Overlay) bool { return o.Device == name && o.Used(f, pools) })
}

// Disabled returns, by device, why settings disable overlays.
func Disabled(f *model.FelixConfigurationSpec) map[string]error {
	why := map[string]error{}
	for _, o := range all {
		if s := o.Settings(f); s.On != nil && !*s.On && o.Encapsulation != noPool {
			why[o.Device] = fmt.Errorf("%s is switched off (FelixConfiguration, %s: false)", o.Name, s.Enabled)
		}
	}
	return why
}
