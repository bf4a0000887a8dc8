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
	// Leaving: nothing uses the overlay any more. A device that exists stays as it is for now, and none is made.
	Leaving bool
	// VXLAN has the parameters of a VXLAN device, nil for other kinds.
	VXLAN *VXLAN
}

// Devices returns the devices of the overlays that a node has, given its settings, the cluster's pools and its Node,
// which may be nil.
func Devices(f *model.FelixConfigurationSpec, pools ippool.Table, own *model.Node) []Device {
	var list []Device
	for _, o := range all {
		if !o.Has(f, pools, own) {
			continue
		}
		d := o.device(f)
		d.Leaving = !o.Used(f, pools)
		if o.Parameters != nil {
			var err error
			if own == nil {
				continue
			} else if d.VXLAN, err = o.Parameters(f, own); err != nil {
				continue // an existing device stays as it is
			}
		}
		if a := own.TunnelAddress(o.Device); a.IsValid() {
			d.Addresses = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		}
		list = append(list, d)
	}
	return list
}

// device returns what every node's device has in common.
func (o Overlay) device(f *model.FelixConfigurationSpec) Device {
	d := Device{Name: o.Device, Kind: o.Kind, Family: o.Family, Overhead: o.Overhead}
	if mtu := o.Settings(f).MTU; mtu != nil {
		d.MTU = *mtu
	}
	return d
}

// MTUOn returns the device's MTU on a host with an MTU.
func (d Device) MTUOn(host int) int {
	if d.MTU > 0 {
		return d.MTU
	}
	return host - d.Overhead
}

// PodMTU returns the MTU of workloads on a host with an MTU: packets of any size fit every overlay that the node has,
// also while it cannot make the device yet.
func PodMTU(f *model.FelixConfigurationSpec, pools ippool.Table, host int) int {
	mtu := host
	for _, o := range all {
		if o.Used(f, pools) {
			mtu = min(mtu, o.device(f).MTUOn(host))
		}
	}
	return mtu
}
