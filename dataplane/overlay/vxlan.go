package overlay

import (
	"net/netip"

	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// VXLAN has the parameters of a VXLAN device (RFC 7348).
type VXLAN struct {
	VNI   uint32
	Port  uint16     // of UDP, to which outer packets are sent
	Local netip.Addr // the source of outer packets: the address of the node
	MAC   string
}

const (
	defaultVNI = 4096
	maxVNI     = 1<<24 - 1
	// The outer Ethernet header does not count: IPv4 20 or IPv6 40, UDP 8, VXLAN 8, the inner Ethernet header 14.
	vxlanOverhead4, vxlanOverhead6 = 50, 70
)

// vxlan carries packets between IPv4 addresses, vxlan6 those between IPv6 addresses.
var (
	vxlan = Overlay{
		Name: "VXLAN", Encapsulation: ippool.VXLAN, Device: model.DeviceVXLAN, Kind: KindVXLAN, Family: model.IPv4,
		Overhead: vxlanOverhead4, Packets: vxlanPackets, Parameters: vxlanParameters(model.IPv4),
		Settings: func(f *model.FelixConfigurationSpec) Settings {
			return Settings{Enabled: "vxlanEnabled", On: f.VXLANEnabled, MTUName: "vxlanMTU", MTU: f.VXLANMTU,
				Shared: vxlanShared(f)}
		},
	}
	vxlan6 = Overlay{
		Name: "VXLAN IPv6", Encapsulation: ippool.VXLAN, Device: model.DeviceVXLANV6, Kind: KindVXLAN,
		Family: model.IPv6, Overhead: vxlanOverhead6, Packets: vxlanPackets, Parameters: vxlanParameters(model.IPv6),
		Settings: func(f *model.FelixConfigurationSpec) Settings {
			// vxlanEnabled is for IPv4 alone, as in Calico.
			return Settings{MTUName: "vxlanMTUV6", MTU: f.VXLANMTUV6, Shared: vxlanShared(f)}
		},
	}
)

// KindVXLAN is the kind of VXLAN devices, as ip-link(8) has it.
const KindVXLAN = "vxlan"

// vxlanParameters returns the parameters of the device of an own Node, or why it can have none.
func vxlanParameters(family model.Family) func(*model.FelixConfigurationSpec, *model.Node) (*VXLAN, error) {
	return func(f *model.FelixConfigurationSpec, own *model.Node) (*VXLAN, error) {
		v, err := vtep.Of(own.Name, own, family)
		if err != nil {
			return nil, err
		}
		p := &VXLAN{VNI: vni(f), Port: vxlanPackets(f).Port, Local: v.Address, MAC: v.MAC}
		return p, nil
	}
}

// vxlanShared are the port and the network, of which both families have the same.
func vxlanShared(f *model.FelixConfigurationSpec) []Shared {
	return []Shared{{"vxlanPort", int(vxlanPackets(f).Port)}, {"vxlanVNI", int(vni(f))}}
}

// vni returns the VXLAN network identifier of the cluster's devices.
func vni(f *model.FelixConfigurationSpec) uint32 {
	if n := f.VXLANVNI; n != nil && *n > 0 && *n <= maxVNI {
		return uint32(*n)
	}
	return defaultVNI
}
