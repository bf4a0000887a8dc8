package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

const (
	sizeofNdMsg = 12
	ndaProtocol = 12 // NDA_PROTOCOL, which package unix lacks
)

// ndmsg appends the header of a message about a neighbour, and its address.
func ndmsg(b *netlink.Builder, link int, a netip.Addr, state uint16, flags byte) {
	b.Buf = append(b.Buf, familyOf(a), 0, 0, 0)
	b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(link))
	b.Buf = binary.NativeEndian.AppendUint16(b.Buf, state)
	b.Buf = append(b.Buf, flags, 0)
	b.AttrAddr(unix.NDA_DST, a)
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// ListNeighbours implements Neighbours.
func (c *Conn) ListNeighbours() ([]Neighbour, error) {
	var all []Neighbour
	err := c.With(func(s *netlink.Socket) error {
		// A flood of neighbours changes the table while it is read, which repeats no entry and loses none of ours.
		_, err := s.DumpOnce(unix.RTM_GETNEIGH, func(b *netlink.Builder) {
			b.Buf = append(b.Buf, make([]byte, sizeofNdMsg)...)
		}, func(m netlink.Message) {
			if n, ok := parseNeighbour(m.Data); ok && (n.Own || !n.Address.IsMulticast()) {
				all = append(all, n)
			}
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	return all, nil
}

func parseNeighbour(data []byte) (Neighbour, bool) {
	if len(data) < sizeofNdMsg || data[0] != unix.AF_INET && data[0] != unix.AF_INET6 {
		return Neighbour{}, false // those of bridges
	}
	n := Neighbour{Link: int(binary.NativeEndian.Uint32(data[4:]))}
	state, flags := binary.NativeEndian.Uint16(data[8:]), data[10]
	switch {
	case state&unix.NUD_PERMANENT != 0:
		n.Kind = Permanent
	case flags&unix.NTF_EXT_LEARNED != 0 && state&unix.NUD_NOARP != 0:
		n.Kind = Unresolved
	case flags&unix.NTF_EXT_LEARNED != 0:
		n.Kind = Resolved
	}
	for kind, value := range netlink.Attrs(data[sizeofNdMsg:]) {
		switch kind {
		case unix.NDA_DST:
			n.Address, _ = netip.AddrFromSlice(value)
		case unix.NDA_LLADDR:
			n.MAC = net.HardwareAddr(value).String()
		case ndaProtocol:
			n.Own = len(value) == 1 && Protocol(value[0]) == ProtocolCalico
		}
	}
	return n, n.Address.IsValid()
}

// SetNeighbour implements Neighbours. Kernels before 5.0 do not keep the origin of an entry; there, it is set again
// now and then.
func (c *Conn) SetNeighbour(n Neighbour) error {
	err := c.With(func(s *netlink.Socket) error {
		state, flags := uint16(unix.NUD_PERMANENT), byte(0)
		if n.Kind != Permanent {
			old, err := queryNeighbour(s, n.Link, n.Address)
			if err != nil {
				return err
			}
			if old.Kind == Permanent && !old.Own {
				return nil
			}
			// The kernel verifies a known address before it trusts it for long.
			state, flags, n.MAC = unix.NUD_NONE, unix.NTF_EXT_LEARNED, ""
			switch {
			case n.Kind == Unresolved:
				state = unix.NUD_NOARP
			case old.MAC != "" && old.Kind != Permanent:
				state, n.MAC = unix.NUD_STALE, old.MAC
			}
		}
		mac, err := net.ParseMAC(n.MAC)
		if err != nil && n.MAC != "" {
			return err
		}
		return s.Request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, func(b *netlink.Builder) {
			ndmsg(b, n.Link, n.Address, state, flags)
			if mac != nil {
				b.Attr(unix.NDA_LLADDR, mac)
			}
			b.Attr(ndaProtocol, []byte{byte(ProtocolCalico)})
		})
	})
	if err != nil {
		return fmt.Errorf("set neighbour %s of interface %d: %w", n.Address, n.Link, err)
	}
	return nil
}

// queryNeighbour reads one entry; it is without Kind and MAC if there is none.
func queryNeighbour(s *netlink.Socket, link int, a netip.Addr) (n Neighbour, err error) {
	err = s.Query(unix.RTM_GETNEIGH, 0, func(b *netlink.Builder) { ndmsg(b, link, a, 0, 0) },
		func(m netlink.Message) { n, _ = parseNeighbour(m.Data) })
	// Kernels before 5.0 only have the whole list.
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return Neighbour{}, nil
	}
	return n, err
}

// RemoveNeighbour implements Neighbours.
func (c *Conn) RemoveNeighbour(link int, a netip.Addr) error {
	err := c.With(func(s *netlink.Socket) error {
		if old, err := queryNeighbour(s, link, a); err != nil || !old.Own {
			return err
		}
		return s.Request(unix.RTM_DELNEIGH, 0, func(b *netlink.Builder) { ndmsg(b, link, a, 0, 0) })
	})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("remove neighbour %s of interface %d: %w", a, link, err)
	}
	return nil
}

// FarEnd implements Neighbours.
func (c *Conn) FarEnd(link int) (FarEnd, error) {
	var end FarEnd
	err := c.With(func(s *netlink.Socket) error {
		peer, namespace := 0, int32(-1)
		err := queryFarEnd(s, link, -1, func(kind uint16, value []byte) {
			switch kind {
			case unix.IFLA_LINK:
				peer = int(uint32Of(value))
			case unix.IFLA_LINK_NETNSID:
				namespace = int32(uint32Of(value))
			}
		})
		if err != nil {
			return err
		}
		if peer == 0 || namespace < 0 {
			return errors.New("it is no veth that leads to another network namespace")
		}
		if err := queryFarEnd(s, peer, namespace, func(kind uint16, value []byte) {
			switch kind {
			case unix.IFLA_ADDRESS:
				end.MAC = net.HardwareAddr(value).String()
			case unix.IFLA_MASTER:
				end.Port = true
			}
		}); err != nil {
			return err
		}
		end.Addresses, err = addressesIn(s, peer, namespace)
		return err
	})
	if err != nil {
		return FarEnd{}, fmt.Errorf("read the other end of interface %d: %w", link, err)
	}
	return end, nil
}

// queryFarEnd visits the attributes of an interface in a namespace, by its number; -1 is the socket's own.
func queryFarEnd(s *netlink.Socket, index int, namespace int32, each func(kind uint16, value []byte)) error {
	return s.Query(unix.RTM_GETLINK, 0, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, 0, 0, 0, 0)
		b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(index))
		b.Buf = append(b.Buf, 0, 0, 0, 0, 0, 0, 0, 0)
		if namespace >= 0 {
			b.Attr32(unix.IFLA_TARGET_NETNSID, uint32(namespace))
		}
		b.Attr32(unix.IFLA_EXT_MASK, skipStats)
	}, func(m netlink.Message) {
		for kind, value := range netlink.Attrs(m.Data[min(unix.SizeofIfInfomsg, len(m.Data)):]) {
			each(kind, value)
		}
	})
}

// addressesIn returns the addresses of an interface in a namespace, by its number.
func addressesIn(s *netlink.Socket, index int, namespace int32) (list []netip.Addr, err error) {
	err = s.Dump(unix.RTM_GETADDR, func() { list = nil }, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, unix.AF_UNSPEC, 0, 0, 0)
		b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(index))
		b.Attr32(unix.IFA_TARGET_NETNSID, uint32(namespace))
	}, func(m netlink.Message) {
		if a, ok := parseAddress(m.Data); ok && a.Link == index {
			list = append(list, a.Prefix.Addr())
		}
	})
	return list, err
}

// statTableFulls is the title of the column of refused entries in /proc/net/stat/arp_cache and ndisc_cache, which have
// a row for each processor.
const statTableFulls = "table_fulls"

// NeighbourOverflows implements Neighbours.
func (c *Conn) NeighbourOverflows() (o Overflows, err error) {
	err = c.namespace.Do(func() error {
		for i, name := range [2]string{"arp_cache", "ndisc_cache"} {
			data, err := os.ReadFile("/proc/thread-self/net/stat/" + name)
			if err != nil {
				return err
			}
			o[i] = tableFulls(string(data))
		}
		return nil
	})
	return o, err
}

func tableFulls(stat string) (sum uint64) {
	lines := strings.Split(stat, "\n")
	column := slices.Index(strings.Fields(lines[0]), statTableFulls)
	for _, line := range lines[1:] {
		if values := strings.Fields(line); column >= 0 && column < len(values) {
			n, _ := strconv.ParseUint(values[column], 16, 64)
			sum += n
		}
	}
	return sum
}
