package nflog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Packet is a packet that a rule sent to a group of NFLOG.
type Packet struct {
	Prefix                      string // of the rule
	In, Out                     string // interfaces; empty where there is none
	Source, Destination         netip.Addr
	Protocol                    uint8
	SourcePort, DestinationPort uint16 // of TCP, UDP, SCTP and the like
	ICMPType, ICMPCode          uint8
	Length                      int // of the packet with its headers, in bytes
}

// Numbers of linux/netfilter/nfnetlink_log.h.
const (
	nflogPacket = 0
	nflogConfig = 1

	nflogCommand = 1
	nflogMode    = 2

	nflogBind       = 1
	nflogCopyPacket = 2

	nflogIn      = 4
	nflogOut     = 5
	nflogPayload = 9
	nflogPrefix  = 10
)

// logQueue bounds how many packets wait to be read: when there are more, the kernel drops the news of them, not time.
const logQueue = 1 << 20

// snapLength is how much of each packet the kernel copies, in bytes: enough for an IPv6 header and the beginning of its
// payload.
const snapLength = 96

// MaxRate is how many packets are read a second, and MaxBurst how many at once. A flood of denied packets would take a
// processor else.
const (
	MaxRate  = 5000
	MaxBurst = 500
)

// Read calls handle with the packets that rules of a network namespace send to a group, until ctx ends, from one
// goroutine. Packets that come faster than MaxRate are lost. One process at a time can read a group.
func Read(ctx context.Context, n *netlink.Namespace, group uint16, handle func(Packet)) error {
	s, err := open(n, group)
	if err != nil {
		return fmt.Errorf("read group %d of nflog: %w", group, err)
	}
	names, pace := netlink.NewInterfaceNames(n), rate.NewLimiter(MaxRate, MaxBurst)
	err = s.Follow(ctx, func(m netlink.Message) {
		// While this waits, the kernel's queue runs over. Wait fails at the end of ctx alone.
		if p, ok := parse(m, names.Of); ok && pace.Wait(ctx) == nil {
			handle(p)
		}
	}, func() {}, func() {})
	if err != nil {
		return fmt.Errorf("read group %d of nflog: %w", group, err)
	}
	return nil
}

func open(n *netlink.Namespace, group uint16) (*netlink.Socket, error) {
	s, err := n.Open(unix.NETLINK_NETFILTER, logQueue)
	if err != nil {
		return nil, err
	}
	configure := func(kind uint16, value []byte) error {
		return s.Request(unix.NFNL_SUBSYS_ULOG<<8|nflogConfig, unix.NLM_F_REQUEST, func(b *netlink.Builder) {
			b.Buf = append(b.Buf, unix.AF_UNSPEC, unix.NFNETLINK_V0, byte(group>>8), byte(group))
			b.Attr(kind, value)
		})
	}
	copyMode := append(binary.BigEndian.AppendUint32(nil, snapLength), nflogCopyPacket, 0)
	err = configure(nflogCommand, []byte{nflogBind})
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("another program reads it: %w", err)
	}
	if err == nil {
		err = configure(nflogMode, copyMode)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// parse reads a message of nflog.
func parse(m netlink.Message, name func(uint32) string) (Packet, bool) {
	var p Packet
	if m.Kind != unix.NFNL_SUBSYS_ULOG<<8|nflogPacket || len(m.Data) < 4 {
		return p, false
	}
	ok := false
	for kind, value := range netlink.Attrs(m.Data[4:]) {
		switch kind {
		case nflogPrefix:
			p.Prefix = unix.ByteSliceToString(value)
		case nflogIn:
			if len(value) == 4 {
				p.In = name(binary.BigEndian.Uint32(value))
			}
		case nflogOut:
			if len(value) == 4 {
				p.Out = name(binary.BigEndian.Uint32(value))
			}
		case nflogPayload:
			ok = p.ParseNetwork(value)
		}
	}
	return p, ok
}

// ParseNetwork reads the headers of an IP packet; of IPv6 without extension headers. It reports whether it is one.
func (p *Packet) ParseNetwork(b []byte) bool {
	if len(b) < 20 {
		return false
	}
	var transport []byte
	switch b[0] >> 4 {
	case 4:
		p.Source, p.Destination = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
		p.Protocol, p.Length = b[9], int(binary.BigEndian.Uint16(b[2:4]))
		if length := 4 * int(b[0]&15); length <= len(b) && binary.BigEndian.Uint16(b[6:8])&0x1fff == 0 {
			transport = b[length:]
		}
	case 6:
		if len(b) < 40 {
			return false
		}
		p.Source, p.Destination = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
		p.Protocol, p.Length = b[6], 40+int(binary.BigEndian.Uint16(b[4:6]))
		transport = b[40:]
	default:
		return false
	}
	p.ParseTransport(transport)
	return true
}

// ParseTransport parses the data after the IP header, if there is any.
func (p *Packet) ParseTransport(transport []byte) {
	switch p.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE, unix.IPPROTO_DCCP:
		if len(transport) >= 4 {
			p.SourcePort, p.DestinationPort = binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		if len(transport) >= 2 {
			p.ICMPType, p.ICMPCode = transport[0], transport[1]
		}
	}
}
