package kernel

import (
	"fmt"
	"net/netip"
	"slices"
)

// NeighbourKind is how the kernel treats an entry of its neighbour table (RFC 826, RFC 4861).
type NeighbourKind uint8

const (
	// Dynamic is an entry that the kernel collects when the table is full.
	Dynamic NeighbourKind = iota
	// Resolved is an entry that the kernel resolves as it does others, but never collects (NTF_EXT_LEARNED). It can be
	// made while the table is full.
	Resolved
	// Unresolved is such an entry of an interface whose neighbours have no hardware addresses, such as tunl0.
	Unresolved
	// Permanent is an entry with a hardware address that nothing but its owner changes. It is never collected either.
	Permanent
)

// Neighbour is one entry of a neighbour table.
type Neighbour struct {
	Link    int
	Address netip.Addr
	MAC     string // empty if it is not known
	Kind    NeighbourKind
	// Own is whether a program of Manx made the entry: its origin is ProtocolCalico.
	Own bool
}

// FarEnd is the other end of a workload's veth, in the workload's network namespace.
type FarEnd struct {
	MAC string
	// Port is whether the end is a port of a bridge, or belongs to another device in another way: then others may have
	// the workload's addresses.
	Port      bool
	Addresses []netip.Addr
}

// Has reports whether the end itself has an address.
func (e FarEnd) Has(a netip.Addr) bool {
	return slices.Contains(e.Addresses, a)
}

// Neighbours reads and changes the neighbour tables.
type Neighbours interface {
	// ListNeighbours returns the entries of unicast addresses, and those of others that programs of Manx made.
	ListNeighbours() ([]Neighbour, error)
	// SetNeighbour makes an entry as n says; n.Own is ignored. A Resolved entry keeps the hardware address that the
	// kernel knows, and one that is Permanent for another program stays as it is.
	SetNeighbour(n Neighbour) error
	// RemoveNeighbour leaves entries of other programs, and succeeds if there is nothing to do.
	RemoveNeighbour(link int, a netip.Addr) error
	// FarEnd reads the other end of a veth. It needs CAP_NET_ADMIN there, but does not enter the namespace.
	FarEnd(link int) (FarEnd, error)
	// NeighbourOverflows returns how often the tables of the host were full. It fails in a network namespace other than
	// the host's.
	NeighbourOverflows() (Overflows, error)
}

// Overflows are how many new entries the full tables of IPv4 and of IPv6 have refused since the host's start.
type Overflows [2]uint64

// SolicitedNode returns the multicast address at which neighbour solicitations for an IPv6 address arrive (RFC 4291,
// section 2.7.1), and its hardware address on Ethernet (RFC 2464, section 7).
func SolicitedNode(a netip.Addr) (group netip.Addr, mac string) {
	b := a.As16()
	group = netip.AddrFrom16([16]byte{0xff, 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
	return group, fmt.Sprintf("33:33:ff:%02x:%02x:%02x", b[13], b[14], b[15])
}
