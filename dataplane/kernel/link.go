package kernel

import (
	"fmt"
	"net/netip"
)

// Link is one network interface.
type Link struct {
	Index int
	Name  string
	Kind  string // "veth", "ipip", ...; empty for hardware and lo
	MTU   int
	Up    bool // administratively
	// Running is false while an interface that is up has no carrier.
	Running bool
	// NoARP is set where neighbours have no hardware addresses.
	NoARP bool
	MAC   string // "ee:ee:ee:ee:ee:ee"; empty if the link has none
	VXLAN VXLAN  // of the kind "vxlan"
}

// Address is one address of an interface, with the length of its subnet.
type Address struct {
	Link   int
	Prefix netip.Prefix // host bits kept: 10.0.0.5/24
	// Peer is the other end of a point-to-point address, else invalid.
	Peer netip.Addr
}

// Device is an interface that is to be made.
type Device struct {
	Name string
	Kind string // as in Link: "vxlan", or one that needs no parameters: "ipip", "bridge"
	// VXLAN has the parameters of the kind "vxlan".
	VXLAN VXLAN
}

// KindWireGuard is the kind of WireGuard devices.
const KindWireGuard = "wireguard"

// NoKindError is the error if the kernel cannot make devices of a kind.
type NoKindError struct{ Kind string }

func (e NoKindError) Error() string {
	if e == ErrNoIPIP {
		return "this kernel has no IPIP (CONFIG_NET_IPIP)"
	}
	if e.Kind == KindWireGuard {
		return "this kernel has no WireGuard (CONFIG_WIREGUARD)"
	}
	return fmt.Sprintf("this kernel has no devices of kind %s", e.Kind)
}

// ErrNoIPIP is the error if the kernel cannot make IPIP tunnel devices.
var ErrNoIPIP = NoKindError{"ipip"}
