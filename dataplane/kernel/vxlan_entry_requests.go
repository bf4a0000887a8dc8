package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

const (
	fdb     = unix.AF_BRIDGE // the family of FDB entries
	ndaNHID = 13             // NDA_NH_ID, which package unix lacks
)

// ListVXLANEntries implements VXLANEntries. The kernel selects the device, which the library does not let it do: the
// table of neighbours is one for all interfaces and network namespaces.
func (c *Conn) ListVXLANEntries(link int) ([]VXLANEntry, error) {
	var all []VXLANEntry
	each := func(m netlink.Message) {
		if e, permanent, ok := parseVXLANEntry(m.Data); ok && permanent && e.Link == link {
			all = append(all, e)
		}
	}
	request := func(family byte) func(*netlink.Builder) {
		return func(b *netlink.Builder) {
			header := make([]byte, sizeofNdMsg)
			header[0] = family
			b.Buf = append(b.Buf, header...)
			b.Attr32(unix.NDA_IFINDEX, uint32(link))
		}
	}
	err := c.With(func(s *netlink.Socket) error {
		if err := s.Dump(unix.RTM_GETNEIGH, func() { all = nil }, request(fdb), each); err != nil {
			return err
		}
		// As in ListNeighbours, a flood must not prevent it.
		_, err := s.DumpOnce(unix.RTM_GETNEIGH, request(unix.AF_UNSPEC), each)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the entries of interface %d: %w", link, err)
	}
	return all, nil
}

// parseVXLANEntry reads a message about a neighbour or an FDB entry.
func parseVXLANEntry(data []byte) (e VXLANEntry, permanent, ok bool) {
	if len(data) < sizeofNdMsg {
		return VXLANEntry{}, false, false
	}
	e.Link = int(binary.NativeEndian.Uint32(data[4:]))
	permanent = binary.NativeEndian.Uint16(data[8:])&unix.NUD_PERMANENT != 0
	var to netip.Addr
	own := true
	for kind, value := range netlink.Attrs(data[sizeofNdMsg:]) {
		switch kind {
		case unix.NDA_DST:
			to, _ = netip.AddrFromSlice(value)
		case unix.NDA_LLADDR:
			e.MAC = net.HardwareAddr(value).String()
		case unix.NDA_PORT, unix.NDA_VNI, unix.NDA_IFINDEX, ndaNHID: // the kernel omits those of the device
			own = false
		}
	}
	switch data[0] {
	case unix.AF_INET, unix.AF_INET6:
		e.Neighbour = to
		return e, permanent, to.IsValid()
	case fdb:
		if own {
			e.Remote = to
		}
		return e, permanent, data[10]&unix.NTF_SELF != 0 && e.MAC != ""
	}
	return VXLANEntry{}, false, false
}

// VXLANEntry implements VXLANEntries.
func (c *Conn) VXLANEntry(e VXLANEntry) (found VXLANEntry, ok bool, err error) {
	err = c.With(func(s *netlink.Socket) error {
		return s.Query(unix.RTM_GETNEIGH, 0, e.message(0, e.Neighbour), func(m netlink.Message) {
			if got, permanent, valid := parseVXLANEntry(m.Data); valid && permanent && got.same(e) {
				found, ok = got, true
			}
		})
	})
	// Kernels before 5.0 only have the whole list; an entry that is there is set again.
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return VXLANEntry{}, false, fmt.Errorf("read %s: %w", e, err)
	}
	return found, ok, nil
}

// SetVXLANEntry implements VXLANEntries.
func (c *Conn) SetVXLANEntry(e VXLANEntry) error {
	mac, err := net.ParseMAC(e.MAC)
	if err == nil {
		err = c.With(func(s *netlink.Socket) error {
			return s.Request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, func(b *netlink.Builder) {
				if e.Neighbour.IsValid() {
					e.message(unix.NUD_PERMANENT, e.Neighbour)(b)
					b.Attr(unix.NDA_LLADDR, mac)
					b.Attr(ndaProtocol, []byte{byte(ProtocolCalico)})
				} else {
					e.message(unix.NUD_PERMANENT, e.Remote)(b)
				}
			})
		})
	}
	if err != nil {
		return fmt.Errorf("set %s: %w", e, err)
	}
	return nil
}

// RemoveVXLANEntry implements VXLANEntries. Of an FDB entry the kernel deletes all destinations if the request names
// the unspecified address, and none without an error if it names another one than the entry has.
func (c *Conn) RemoveVXLANEntry(e VXLANEntry) error {
	to := e.Neighbour
	if !to.IsValid() {
		to = netip.IPv4Unspecified()
	}
	err := c.With(func(s *netlink.Socket) error { return s.Request(unix.RTM_DELNEIGH, 0, e.message(0, to)) })
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("remove %s: %w", e, err)
	}
	return nil
}

// message returns a function that appends the header of a message about e, its key and an address.
func (e VXLANEntry) message(state uint16, to netip.Addr) func(*netlink.Builder) {
	return func(b *netlink.Builder) {
		if e.Neighbour.IsValid() {
			ndmsg(b, e.Link, to, state, 0)
			return
		}
		b.Buf = append(b.Buf, fdb, 0, 0, 0)
		b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(e.Link))
		b.Buf = binary.NativeEndian.AppendUint16(b.Buf, state)
		b.Buf = append(b.Buf, unix.NTF_SELF, 0)
		if to.IsValid() {
			b.AttrAddr(unix.NDA_DST, to)
		}
		if mac, err := net.ParseMAC(e.MAC); err == nil {
			b.Attr(unix.NDA_LLADDR, mac)
		}
	}
}

// String names the entry for messages.
func (e VXLANEntry) String() string {
	if e.Neighbour.IsValid() {
		return fmt.Sprintf("neighbour %s of interface %d", e.Neighbour, e.Link)
	}
	return fmt.Sprintf("FDB entry %s of interface %d", e.MAC, e.Link)
}

// entryQueue holds the events of a burst, in bytes: some 10,000 entries.
const entryQueue = 4 << 20

// WatchVXLANEntries implements VXLANEntries.
func (c *Conn) WatchVXLANEntries(link int, changed func([]VXLANEvent)) (stop func(), err error) {
	s, err := c.namespace.Open(unix.NETLINK_ROUTE, entryQueue)
	if err != nil {
		return nil, fmt.Errorf("watch the entries of interface %d: %w", link, err)
	}
	if err := errors.Join(s.OnlyNeighboursOf(link), s.Join(unix.RTNLGRP_NEIGH)); err != nil {
		s.Close()
		return nil, fmt.Errorf("watch the entries of interface %d: %w", link, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		followEntries(ctx, s, changed)
	}()
	return func() { cancel(); <-done }, nil
}

func followEntries(ctx context.Context, s *netlink.Socket, changed func([]VXLANEvent)) {
	var events []VXLANEvent
	var lost bool
	var p pacer
	err := s.Follow(ctx, func(m netlink.Message) {
		e, permanent, ok := parseVXLANEntry(m.Data)
		if ok && (m.Kind == unix.RTM_NEWNEIGH || m.Kind == unix.RTM_DELNEIGH) {
			events = append(events, VXLANEvent{Entry: e, Gone: m.Kind == unix.RTM_DELNEIGH || !permanent})
		}
	}, func() { lost = true }, func() {
		switch {
		case lost:
			changed(nil)
		case len(events) > 0:
			changed(events)
		}
		events, lost = nil, false
		p.pause(ctx, time.Now())
	})
	if err != nil {
		changed(nil)
	}
}
