package device

import (
	"fmt"
	"net/netip"
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
	exists  kind = "device" // value: the kind of the device
	mtu     kind = "mtu"
	address kind = "address"
	up      kind = "up"
)

var kindOrder = []kind{exists, mtu, address, up}

// String is for people: the kind, and the property's name among those of its kind.
func (k key) String() string {
	if k.Kind == address {
		return fmt.Sprintf("%s %s", k.Kind, k.Address)
	}
	return fmt.Sprintf("%s %s", k.Kind, k.Device)
}

// Link implements driver.Objects' key.
func (k key) Link() string { return k.Device }
