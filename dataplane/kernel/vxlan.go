package kernel

import (
	"cmp"
	"fmt"
	"net/netip"
)

// KindVXLAN is the kind of VXLAN devices.
const KindVXLAN = "vxlan"

// VXLAN are the parameters of a VXLAN device (RFC 7348). One that is made is bound to no other interface, which would
// take it along when it is deleted, and does not learn from packets where an address is.
type VXLAN struct {
	VNI   uint32
	Port  uint16     // of UDP
	Local netip.Addr // the source of outer packets
	MAC   string

	// Learning and Mode are those of existing devices. Mode names another way to choose the destination than by FDB
	// entries, or another form of packets; empty: neither.
	Learning bool
	Mode     string
}

// String writes the parameters as ip-link(8) has them.
func (v VXLAN) String() string {
	text := fmt.Sprintf("id %d dstport %d local %s address %s", v.VNI, v.Port, v.Local, v.MAC)
	if v.Learning {
		text += " learning"
	}
	if v.Mode != "" {
		text += " " + v.Mode
	}
	return text
}

// Replaces returns which difference of an existing VXLAN device from d makes it necessary to delete it and make it
// again, with the loss of its routes and entries. The result is empty if there is none, and for other kinds: the kernel
// changes the other parameters in place.
func (d Device) Replaces(l Link) (difference string) {
	have, want := l.VXLAN, d.VXLAN
	switch {
	case l.Kind != KindVXLAN || d.Kind != KindVXLAN:
		return ""
	case have.VNI != want.VNI:
		return fmt.Sprintf("its VNI is %d, not %d", have.VNI, want.VNI)
	case have.Port != want.Port:
		return fmt.Sprintf("its port is %d, not %d", have.Port, want.Port)
	case have.Mode != want.Mode:
		return fmt.Sprintf("its mode is %q, not %q", have.Mode, want.Mode)
	case have.Local.Is6() != want.Local.Is6(): // one without an address is for IPv4
		return fmt.Sprintf("its packets are not of the IP version of %s", want.Local)
	}
	return ""
}

// VNITakenError is the error if a VXLAN device cannot be made because another one has its VNI and port.
type VNITakenError struct {
	VNI  uint32
	Port uint16
	By   string // the name of the other device, empty if it is not in this network namespace
}

func (e VNITakenError) Error() string {
	by := cmp.Or(e.By, "of another network namespace")
	return fmt.Sprintf("VXLAN device %s has VNI %d on UDP port %d already: remove it, or give one of the two another "+
		"VNI", by, e.VNI, e.Port)
}

// Taken returns an error if another of these interfaces has the VNI and the port of d.
func (d Device) Taken(links []Link) error {
	for _, l := range links {
		v := l.VXLAN
		if d.Kind == KindVXLAN && l.Kind == KindVXLAN && l.Name != d.Name && v.VNI == d.VXLAN.VNI &&
			v.Port == d.VXLAN.Port && v.Local.Is6() == d.VXLAN.Local.Is6() {
			return VNITakenError{VNI: v.VNI, Port: v.Port, By: l.Name}
		}
	}
	return nil
}
