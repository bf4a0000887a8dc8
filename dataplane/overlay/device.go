package overlay

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// Device is the device of an overlay as this node should have it.
type Device struct {
	Name string
	Kind string // as ip-link(8) has it
	// Family is that of its addresses: others on the device are left alone. 0: both.
	Family model.Family
	// MTU 0 is that of the host less Overhead, the size of the overlay's headers in bytes. MTUName names the setting.
	MTU, Overhead int
	MTUName       string
	// Addresses are all of the family that the device shall have, with the length of their subnets.
	Addresses []netip.Prefix
	// Leaving: nothing uses the overlay any more. A device that exists stays as it is for now, and none is made.
	Leaving bool
	// VXLAN has the parameters of a VXLAN device, nil for other kinds.
	VXLAN *VXLAN
	// Kept: the Node has an address of the device that is in no pool, or no sound parameters. A device that exists
	// keeps its parameters and its addresses, so that it fails static, and none is made.
	Kept bool
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
				if own.TunnelAddress(o.Device).IsValid() {
					d.Kept = true
					list = append(list, d)
				}
				continue
			}
		}
		switch a := own.TunnelAddress(o.Device); {
		case !a.IsValid():
		case pools.OfAddress(a) == nil && a != own.HostAddress(o.Family):
			d.Kept = true // a server or a router may have it: this host could not reach that any more
			list = append(list, d)
			continue
		default:
			d.Addresses = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
		}
		if a := own.HostAddress(o.Family); a.IsValid() && o.hasHostAddress(f, d.Addresses) {
			d.Addresses = append([]netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, d.Addresses...)
		}
		list = append(list, d)
	}
	return list
}

// device returns what every node's device has in common.
func (o Overlay) device(f *model.FelixConfigurationSpec) Device {
	d := Device{Name: o.Device, Kind: o.Kind, Family: o.Family, Overhead: o.Overhead}
	s := o.Settings(f)
	if d.MTUName = s.MTUName; s.MTU != nil && *s.MTU >= leastMTU(o.Family) {
		d.MTU = *s.MTU
	}
	return d
}

// leastMTU is the size in bytes of the packets that each host of an IP version must take (RFC 791, RFC 8200). The
// kernel removes IPv6 from interfaces with a smaller MTU.
func leastMTU(f model.Family) int {
	if f == model.IPv6 {
		return 1280
	}
	return 576
}

// MTUOn returns the device's MTU on a host with an MTU, 0 if neither is known.
func (d Device) MTUOn(host int) int {
	switch {
	case d.MTU > 0:
		return d.MTU
	case host == 0:
		return 0
	}
	return max(host-d.Overhead, leastMTU(d.Family))
}

// InnerMTU is the MTU of packets through a device, or without one, that reach a node as packets of at most path bytes.
func InnerMTU(device string, path int) int {
	for _, o := range all {
		if o.Device == device {
			return max(path-o.Overhead, leastMTU(o.Family))
		}
	}
	return path
}

// TooLarge returns why the packets of the device do not fit a host with an MTU, empty if they do. source is the begin
// of a sentence that ends with that MTU, such as "the links and routes to other nodes take".
func (d Device) TooLarge(host int, source string) string {
	mtu := d.MTUOn(host)
	if host == 0 || mtu+d.Overhead <= host {
		return ""
	}
	fix := fmt.Sprintf("Set %s to %d at most, or to 0", d.MTUName, host-d.Overhead)
	if d.MTU == 0 {
		fix = fmt.Sprintf("Raise the MTU of the network between the nodes to %d", mtu+d.Overhead)
	}
	return fmt.Sprintf("its MTU is %d, so its packets have up to %d bytes with their headers, and %s %d: larger "+
		"packets are fragmented, and lost where fragments are dropped. %s", mtu, mtu+d.Overhead, source, host, fix)
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
	if slices.ContainsFunc(pools, func(p ippool.Pool) bool { return p.CIDR.Addr().Is6() }) {
		return max(mtu, leastMTU(model.IPv6))
	}
	return mtu
}
