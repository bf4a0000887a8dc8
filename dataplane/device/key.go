package device

import (
	"fmt"
	"net/netip"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
)

// key names one property of a device.
type key struct {
	Kind   kind
	Device string
	// Address is set for the kind address.
	Address netip.Prefix
}

// kind is the kind of a property.
type kind string

// The kinds of properties, in the order in which they are applied.
const (
	exists  kind = "device" // value: the kind of the device, and its parameters
	mtu     kind = "mtu"
	address kind = "address"
	up      kind = "up"
	// txChecksum is whether checksums of packets are left to the hardware; value: on or off
	txChecksum kind = "tx-checksum"
)

var kindOrder = []kind{exists, txChecksum, mtu, address, up}

// String is for people: the kind, and the property's name among those of its kind.
func (k key) String() string {
	if k.Kind == address {
		return fmt.Sprintf("%s %s", k.Kind, k.Address)
	}
	return fmt.Sprintf("%s %s", k.Kind, k.Device)
}

// value is that of a property.
type value struct {
	Text  string
	VXLAN kernel.VXLAN // of a VXLAN device
	// Index is that of the interface, 0 for the kind exists: a new one of the name has none of the properties of the
	// former, and no other program took them away.
	Index int
}

// String is for people.
func (v value) String() string {
	if v.VXLAN == (kernel.VXLAN{}) {
		return v.Text
	}
	return v.Text + " " + v.VXLAN.String()
}

// vxlanOf returns the parameters of a VXLAN device, none for other kinds.
func vxlanOf(d overlay.Device) (v kernel.VXLAN) {
	if p := d.VXLAN; p != nil {
		v = kernel.VXLAN{VNI: p.VNI, Port: p.Port, Local: p.Local, MAC: p.MAC}
	}
	return v
}

// Link implements driver.Objects' key.
func (k key) Link() string { return k.Device }
