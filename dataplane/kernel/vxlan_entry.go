package kernel

import "net/netip"

// VXLANEntry is one of the two permanent entries that a VXLAN device has for another node. It is a neighbour, from the
// address of that node's device to its hardware address, or an entry of the forwarding database (FDB), from the
// hardware address to the node's own address.
type VXLANEntry struct {
	Link int
	// Neighbour is the address of a neighbour, invalid for an FDB entry.
	Neighbour netip.Addr
	MAC       string
	// Remote is where an FDB entry leads; invalid if it has a port, a VNI or an interface of its own.
	Remote netip.Addr
}

// same reports whether a and b are entries for the same neighbour, or for the same hardware address.
func (a VXLANEntry) same(b VXLANEntry) bool {
	return a.Link == b.Link && a.Neighbour == b.Neighbour && (a.Neighbour.IsValid() || a.MAC == b.MAC)
}

// VXLANEvent is a change of an entry. Gone: there is no permanent one any more.
type VXLANEvent struct {
	Entry VXLANEntry
	Gone  bool
}

// VXLANEntries reads and changes the entries of VXLAN devices. Those that are not permanent are the kernel's: they are
// left alone, but for one in the place of an entry that is set.
type VXLANEntries interface {
	ListVXLANEntries(link int) ([]VXLANEntry, error)
	// VXLANEntry reads the entry with the key of one, false if there is none.
	VXLANEntry(VXLANEntry) (VXLANEntry, bool, error)
	SetVXLANEntry(VXLANEntry) error
	// RemoveVXLANEntry succeeds if there is nothing to do.
	RemoveVXLANEntry(VXLANEntry) error
	// WatchVXLANEntries calls changed with the changes of a device's entries, of this program, too, from another
	// goroutine. No events: some were lost, or the watch has failed. stop ends it; changed is not called after it.
	WatchVXLANEntries(link int, changed func([]VXLANEvent)) (stop func(), err error)
}
