package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// LoggedPacket is a packet that a rule sent to a group of NFLOG.
type LoggedPacket struct {
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

// snapLength is how much of each packet is asked for: enough for an IPv6 header with the beginning of what follows.
const snapLength = 96

// ReadLog calls handle with the packets that rules send to a group of NFLOG, until ctx ends,
// from one goroutine. What comes too fast is lost. One process at a time can read a group.
func (r *NFT) ReadLog(ctx context.Context, group uint16, handle func(LoggedPacket)) error {
	s, err := r.openLog(group)
	if err != nil {
		return fmt.Errorf("read group %d of nflog: %w", group, err)
	}
	names := interfaceNames{}
	err = s.follow(ctx, func(m message) {
		if p, ok := parseLogged(m, r.nameOf(&names)); ok {
			handle(p)
		}
	}, func() {}, func() {})
	if err != nil {
		return fmt.Errorf("read group %d of nflog: %w", group, err)
	}
	return nil
}

func (r *NFT) openLog(group uint16) (*socket, error) {
	s, err := r.open(logQueue)
	if err != nil {
		return nil, err
	}
	configure := func(kind uint16, value []byte) error {
		return s.request(unix.NFNL_SUBSYS_ULOG<<8|nflogConfig, unix.NLM_F_REQUEST, func(b *builder) {
			b.buf = append(b.buf, unix.AF_UNSPEC, unix.NFNETLINK_V0, byte(group>>8), byte(group))
			b.attr(kind, value)
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
		s.close()
		return nil, err
	}
	return s, nil
}

// interfaceNames remembers names by index: looking one up for each packet would cost more than the packet.
type interfaceNames struct {
	mu    sync.Mutex
	names map[uint32]string
}

const mostNames = 4096

func (r *NFT) nameOf(known *interfaceNames) func(uint32) string {
	return func(index uint32) string {
		known.mu.Lock()
		defer known.mu.Unlock()
		if name, ok := known.names[index]; ok {
			return name
		}
		name := ""
		_ = r.namespace.inside(func() error {
			if i, err := net.InterfaceByIndex(int(index)); err == nil {
				name = i.Name
			}
			return nil
		})
		if known.names == nil || len(known.names) >= mostNames {
			known.names = map[uint32]string{}
		}
		known.names[index] = name
		return name
	}
}

// parseLogged reads a message of nflog.
func parseLogged(m message, name func(uint32) string) (LoggedPacket, bool) {
	var p LoggedPacket
	if m.kind != unix.NFNL_SUBSYS_ULOG<<8|nflogPacket || len(m.data) < 4 {
		return p, false
	}
	ok := false
	for kind, value, rest, more := nextAttr(m.data[4:]); more; kind, value, rest, more = nextAttr(rest) {
		switch kind {
		case nflogPrefix:
			p.Prefix = text(value)
		case nflogIn:
			if len(value) == 4 {
				p.In = name(binary.BigEndian.Uint32(value))
			}
		case nflogOut:
			if len(value) == 4 {
				p.Out = name(binary.BigEndian.Uint32(value))
			}
		case nflogPayload:
			ok = p.parse(value)
		}
	}
	return p, ok
}

// parse reads the headers of an IP packet; of IPv6 without extension headers.
func (p *LoggedPacket) parse(b []byte) bool {
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
	p.parseTransport(transport)
	return true
}

// parseTransport reads what follows the IP header, if there is anything.
func (p *LoggedPacket) parseTransport(transport []byte) {
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
