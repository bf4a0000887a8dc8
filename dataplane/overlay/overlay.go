package overlay

import (
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Overlay is an encapsulation of the packets between nodes, and the one device of a node that does it.
type Overlay struct {
	// Name is for people and messages.
	Name string
	// Encapsulation is that of the pools which the overlay is for.
	Encapsulation ippool.Encapsulation
	// Device and Kind are the name and the kind of the device. Every address of the overlay's family on it, and every
	// route of Calico's protocol through it, is the node's own to remove.
	Device, Kind string
	// Family is that of the device's addresses, and of the outer packets.
	Family model.Family
	// Overhead is the size of the headers that it adds, in bytes.
	Overhead int

	setting string // of FelixConfiguration, for enabled
	enabled func(*model.FelixConfigurationSpec) *bool
	mtu     func(*model.FelixConfigurationSpec) *int
}

// All returns the overlays that this version makes.
func All() []Overlay {
	return []Overlay{{
		Name: "IPIP", Encapsulation: ippool.IPIP, Device: model.DeviceIPIP, Kind: "ipip", Family: model.IPv4,
		Overhead: 20, // an IPv4 header
		setting:  "ipipEnabled",
		enabled:  func(f *model.FelixConfigurationSpec) *bool { return f.IPIPEnabled },
		mtu:      func(f *model.FelixConfigurationSpec) *int { return f.IPIPMTU },
	}}
}

// DeviceNames returns the names of the overlays' devices.
func DeviceNames() []string {
	var names []string
	for _, o := range All() {
		names = append(names, o.Device)
	}
	return names
}

// Used reports whether a node with these settings, in a cluster with these pools, has the overlay.
func (o Overlay) Used(f *model.FelixConfigurationSpec, pools ippool.Table) bool {
	if on := o.enabled(f); on != nil {
		return *on
	}
	return pools.Use(o.Encapsulation)
}
