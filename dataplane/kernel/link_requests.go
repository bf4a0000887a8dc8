package kernel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	vnetlink "github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel/device"
	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// skipStats (RTEXT_FILTER_SKIP_STATS) leaves the counters of interfaces out, which are most of the kernel's work.
const skipStats = 1 << 3

// ListLinks implements Links.
func (c *Conn) ListLinks() ([]Link, error) {
	var all []Link
	err := c.With(func(s *netlink.Socket) error {
		return s.Dump(unix.RTM_GETLINK, func() { all = nil }, func(b *netlink.Builder) {
			b.Buf = append(b.Buf, make([]byte, unix.SizeofIfInfomsg)...)
			b.Attr32(unix.IFLA_EXT_MASK, skipStats)
		}, func(m netlink.Message) {
			if l, ok := parseLink(m.Data); ok {
				all = append(all, l)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return all, nil
}

// ListAddresses implements Links.
func (c *Conn) ListAddresses() ([]Address, error) {
	var all []Address
	err := c.With(func(s *netlink.Socket) error {
		return s.Dump(unix.RTM_GETADDR, func() { all = nil }, func(b *netlink.Builder) {
			b.Buf = append(b.Buf, make([]byte, unix.SizeofIfAddrmsg)...)
		}, func(m netlink.Message) {
			if a, ok := parseAddress(m.Data); ok {
				all = append(all, a)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	return all, nil
}

// EnsureDevice implements Links. Where ipip is a module, the request for a device loads the module, which then makes
// tunl0 itself, and the answer is that the device exists.
func (c *Conn) EnsureDevice(d Device) (Link, error) {
	links, err := c.ListLinks()
	if err != nil {
		return Link{}, err
	}
	l, exists := linkNamed(links, d.Name)
	if exists {
		if _, err := d.Check(l); err != nil {
			return Link{}, err
		}
		if d.Replaces(l) == "" {
			return c.adjust(d, l)
		}
	}
	if err := d.Taken(links); err != nil { // the former device stays meanwhile
		return Link{}, fmt.Errorf("create interface %s: %w", d.Name, err)
	}
	if exists {
		if err := c.DeleteLink(l.Index); err != nil {
			return Link{}, err
		}
	}
	return c.create(d)
}

func (c *Conn) create(d Device) (Link, error) {
	form, err := d.form()
	if err == nil {
		err = c.onDevice(func(h device.Handle) error { return h.LinkAdd(form) })
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return Link{}, fmt.Errorf("create interface %s: %w", d.Name, NoKindError{d.Kind})
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return Link{}, fmt.Errorf("create interface %s: %w", d.Name, err)
	}
	links, listed := c.ListLinks()
	if listed != nil {
		return Link{}, listed
	}
	if l, ok := linkNamed(links, d.Name); ok {
		return d.Check(l)
	}
	if err != nil && d.Kind == KindVXLAN {
		err = VNITakenError{VNI: d.VXLAN.VNI, Port: d.VXLAN.Port}
		return Link{}, fmt.Errorf("create interface %s: %w", d.Name, cmp.Or(d.Taken(links), err))
	}
	return Link{}, fmt.Errorf("create interface %s: the kernel accepted it, but there is none", d.Name)
}

// form returns the device in the library's form. Of a VXLAN device the library leaves the checksum of UDP over IPv4 as
// the kernel has it, and neither sends nor accepts packets over IPv6 without one.
func (d Device) form() (vnetlink.Link, error) {
	attrs := vnetlink.NewLinkAttrs()
	attrs.Name = d.Name
	if d.Kind != KindVXLAN {
		return &vnetlink.GenericLink{LinkAttrs: attrs, LinkType: d.Kind}, nil
	}
	var err error
	attrs.HardwareAddr, err = net.ParseMAC(d.VXLAN.MAC)
	return &vnetlink.Vxlan{LinkAttrs: attrs, VxlanId: int(d.VXLAN.VNI), Port: int(d.VXLAN.Port),
		SrcAddr: d.VXLAN.Local.AsSlice()}, err
}

// adjust changes those parameters of an existing VXLAN device that the kernel changes in place. Routes and FDB entries
// stay; the kernel removes all neighbours with the hardware address. The library's LinkModify sends parameters that may
// not even be repeated.
func (c *Conn) adjust(d Device, l Link) (Link, error) {
	have, want := l.VXLAN, d.VXLAN
	if d.Kind != KindVXLAN || have == want {
		return l, nil
	}
	err := c.With(func(s *netlink.Socket) error {
		if have.Local == want.Local && have.Learning == want.Learning {
			return nil
		}
		return s.Request(unix.RTM_NEWLINK, 0, func(b *netlink.Builder) {
			b.Buf = append(b.Buf, 0, 0, 0, 0)
			b.Buf = binary.NativeEndian.AppendUint32(b.Buf, uint32(l.Index))
			b.Buf = append(b.Buf, 0, 0, 0, 0, 0, 0, 0, 0)
			info := b.Nest(unix.IFLA_LINKINFO)
			b.AttrText(unix.IFLA_INFO_KIND, KindVXLAN)
			data := b.Nest(unix.IFLA_INFO_DATA)
			b.Attr32(nl.IFLA_VXLAN_ID, want.VNI)
			if have.Local != want.Local && want.Local.Is6() {
				b.AttrAddr(nl.IFLA_VXLAN_LOCAL6, want.Local)
			} else if have.Local != want.Local {
				b.AttrAddr(nl.IFLA_VXLAN_LOCAL, want.Local)
			}
			if have.Learning != want.Learning {
				b.Attr(nl.IFLA_VXLAN_LEARNING, []byte{0})
			}
			b.EndNest(data)
			b.EndNest(info)
		})
	})
	if err == nil && have.MAC != want.MAC {
		err = c.setMAC(l.Index, want.MAC)
	}
	if err != nil {
		return Link{}, fmt.Errorf("change interface %s to %s: %w", d.Name, want, err)
	}
	l.VXLAN, l.MAC = want, want.MAC
	return l, nil
}

func (c *Conn) setMAC(link int, mac string) error {
	address, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	return c.onDevice(func(h device.Handle) error { return h.LinkSetHardwareAddr(device.At(link), address) })
}

// DeleteLink implements Links.
func (c *Conn) DeleteLink(link int) error {
	err := c.onDevice(func(h device.Handle) error { return h.LinkDel(device.At(link)) })
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete interface %d: %w", link, err)
	}
	return nil
}

// Check refuses an interface that has the name of d and is another.
func (d Device) Check(l Link) (Link, error) {
	if l.Kind != d.Kind {
		return Link{}, fmt.Errorf("interface %s is of kind %q, not %s: remove or rename it", l.Name, l.Kind, d.Kind)
	}
	return l, nil
}

func linkNamed(links []Link, name string) (Link, bool) {
	for _, l := range links {
		if l.Name == name {
			return l, true
		}
	}
	return Link{}, false
}

// LinkNamed queries one interface over a socket of rtnetlink. The error Is unix.ENODEV if there is none.
func LinkNamed(s *netlink.Socket, name string) (Link, error) {
	var l Link
	err := s.Query(unix.RTM_GETLINK, 0, func(b *netlink.Builder) {
		b.Buf = append(b.Buf, make([]byte, unix.SizeofIfInfomsg)...)
		b.AttrText(unix.IFLA_IFNAME, name)
	}, func(m netlink.Message) { l, _ = parseLink(m.Data) })
	if err == nil && l.Name != name {
		err = unix.ENODEV
	}
	if err != nil {
		return Link{}, fmt.Errorf("interface %s: %w", name, err)
	}
	return l, nil
}

// SetMTU implements Links.
func (c *Conn) SetMTU(link, mtu int) error {
	if err := c.onDevice(func(h device.Handle) error { return h.LinkSetMTU(device.At(link), mtu) }); err != nil {
		return fmt.Errorf("set MTU %d of interface %d: %w", mtu, link, err)
	}
	return nil
}

// SetUp implements Links.
func (c *Conn) SetUp(link int) error {
	if err := c.onDevice(func(h device.Handle) error { return h.LinkSetUp(device.At(link)) }); err != nil {
		return fmt.Errorf("set interface %d up: %w", link, err)
	}
	return nil
}

// AddAddress implements Links.
func (c *Conn) AddAddress(a Address) error {
	err := c.onDevice(func(h device.Handle) error { return h.AddrAdd(device.At(a.Link), a.form()) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to interface %d: %w", a.Prefix, a.Link, err)
	}
	return nil
}

// DeleteAddress implements Links.
func (c *Conn) DeleteAddress(a Address) error {
	err := c.onDevice(func(h device.Handle) error { return h.AddrDel(device.At(a.Link), a.form()) })
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove address %s from interface %d: %w", a.Prefix, a.Link, err)
	}
	return nil
}

// form returns the address in the library's form, without the broadcast address that the library would add. An IPv6
// address is in use at once: those that are added here belong to this node alone.
func (a Address) form() *vnetlink.Addr {
	f := &vnetlink.Addr{IPNet: device.IPNet(a.Prefix), Broadcast: net.IPv4zero}
	if a.Prefix.Addr().Is6() {
		f.Flags = unix.IFA_F_NODAD
	}
	if a.Peer.IsValid() {
		f.Peer = device.IPNet(netip.PrefixFrom(a.Peer, a.Prefix.Bits()))
	}
	return f
}

func parseLink(data []byte) (Link, bool) {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC { // bridges report their ports as links too
		return Link{}, false
	}
	flags := binary.NativeEndian.Uint32(data[8:])
	l := Link{Index: int(binary.NativeEndian.Uint32(data[4:])), Up: flags&unix.IFF_UP != 0,
		Running: flags&unix.IFF_RUNNING != 0, NoARP: flags&unix.IFF_NOARP != 0}
	for kind, value := range netlink.Attrs(data[unix.SizeofIfInfomsg:]) {
		switch kind {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(value)
		case unix.IFLA_MTU:
			l.MTU = int(uint32Of(value))
		case unix.IFLA_ADDRESS:
			l.MAC = net.HardwareAddr(value).String()
		case unix.IFLA_LINKINFO:
			for kind, value := range netlink.Attrs(value) {
				switch {
				case kind == unix.IFLA_INFO_KIND:
					l.Kind = unix.ByteSliceToString(value)
				case kind == unix.IFLA_INFO_DATA && l.Kind == KindVXLAN:
					l.VXLAN = parseVXLAN(value)
				}
			}
		}
	}
	if l.Kind == KindVXLAN {
		l.VXLAN.MAC = l.MAC
	}
	return l, l.Name != ""
}

func parseVXLAN(data []byte) (v VXLAN) {
	for kind, value := range netlink.Attrs(data) {
		on := len(value) == 0 || value[0] != 0
		switch kind {
		case nl.IFLA_VXLAN_ID:
			v.VNI = uint32Of(value)
		case nl.IFLA_VXLAN_PORT:
			if len(value) == 2 {
				v.Port = binary.BigEndian.Uint16(value)
			}
		case nl.IFLA_VXLAN_LOCAL, nl.IFLA_VXLAN_LOCAL6:
			v.Local, _ = netip.AddrFromSlice(value)
		case nl.IFLA_VXLAN_LEARNING:
			v.Learning = on
		case nl.IFLA_VXLAN_GROUP, nl.IFLA_VXLAN_GROUP6:
			a, _ := netip.AddrFromSlice(value)
			v.Mode = fmt.Sprintf("group %s", a)
		default:
			if mode := vxlanModes[kind]; mode != "" && on {
				v.Mode = mode
			}
		}
	}
	return v
}

const vxlanGPE = 27 // IFLA_VXLAN_GPE, which the library lacks

// vxlanModes are attributes of VXLAN devices that send other packets, or to other places, by their names in ip-link(8).
var vxlanModes = map[uint16]string{nl.IFLA_VXLAN_FLOWBASED: "external", nl.IFLA_VXLAN_GBP: "gbp",
	vxlanGPE: "gpe"}

func parseAddress(data []byte) (Address, bool) {
	if len(data) < unix.SizeofIfAddrmsg {
		return Address{}, false
	}
	a := Address{Link: int(binary.NativeEndian.Uint32(data[4:]))}
	var local, other netip.Addr
	for kind, value := range netlink.Attrs(data[unix.SizeofIfAddrmsg:]) {
		switch kind {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(value)
		case unix.IFA_ADDRESS:
			other, _ = netip.AddrFromSlice(value)
		}
	}
	switch {
	case !local.IsValid():
		local = other // IPv6 has IFA_LOCAL only with a peer
	case local != other && other.IsValid():
		a.Peer = other
	}
	a.Prefix = netip.PrefixFrom(local, int(data[1]))
	return a, a.Prefix.IsValid()
}
