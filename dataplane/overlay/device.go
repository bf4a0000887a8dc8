package overlay

import (
	"net/netip"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Device is the device of an overlay as this node should have it.
type Device struct {
	Name string
	Kind string // as ip-link(8) has it
	// Family is that of its addresses: others on the device are left alone. 0: both.
	Family model.Family
	// MTU 0 is that of the host less Overhead, the size of the overlay's headers in bytes.
	MTU, Overhead int
	// Addresses are all of the family that the device shall have, with the length of their subnets.
	Addresses []netip.Prefix
}

// Devices returns the devices of the overlays that a node has, given its settings, the cluster's pools and its Node,
// which may be nil.
func Devices(f *model.FelixConfigurationSpec, pools ippool.Table, own *model.Node) []Device {
	var list []Device
	for _, o := range all {
		if !o.Used(f, pools) {
			continue
		}
		d := Device{Name: o.Device, Kind: o.Kind, Family: o.Family, Overhead: o.Overhead}
		if mtu := o.Settings(f).MTU; mtu != nil {
			d.MTU = *mtu
		}
		if a := own.TunnelAddress(o.Device); a.IsValid() {
			d.Addresses = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		}
		list = append(list, d)
	}
	return list
}

// MTUOn returns the device's MTU on a host with an MTU.
func (d Device) MTUOn(host int) int {
	if d.MTU > 0 {
		return d.MTU
	}
	return host - d.Overhead
}

// PodMTU returns the MTU of workloads on a host with an MTU and these devices: packets of any size fit every overlay.
func PodMTU(devices []Device, host int) int {
	mtu := host
	for _, d := range devices {
		mtu = min(mtu, d.MTUOn(host))
	}
	return mtu
}
