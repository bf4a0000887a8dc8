package property

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// Packets end with a magic number and their own, by which they are known again even if they were translated.
const magic = 0x6d616e78

// encode makes the IP packet that opens a connection.
func encode(p *ruleset.Packet, number uint32) []byte {
	tail := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, magic), number)
	var b []byte
	port := func() {
		b = binary.BigEndian.AppendUint16(b, p.SourcePort)
		b = binary.BigEndian.AppendUint16(b, p.DestinationPort)
	}
	sum := -1 // offset of the checksum
	switch p.Protocol {
	case 6: // SYN
		port()
		b = binary.BigEndian.AppendUint32(b, number)
		b = append(b, 0, 0, 0, 0, 5<<4, 2, 0xff, 0xff, 0, 0, 0, 0)
		sum = 16
	case 17:
		port()
		b = append(b, 0, byte(8+len(tail)), 0, 0)
		sum = 6
	case 132: // INIT (RFC 9260, section 3.3.2) with an unknown parameter
		port()
		b = append(b, make([]byte, 8)...)
		b = append(b, 1, 0, 0, byte(20+4+len(tail)))
		b = binary.BigEndian.AppendUint32(b, number|1)
		b = binary.BigEndian.AppendUint32(b, 65536)
		b = append(b, 0, 1, 0, 1, 0, 0, 0, 1, 0x80, 0x7f, 0, byte(4+len(tail)))
	case 1, 58:
		b = append(b, p.ICMPType, p.ICMPCode, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(number)) // the identifier distinguishes connections
		b = append(b, 0, 1)
		sum = 2
	}
	b = append(b, tail...)
	switch {
	case p.Protocol == 132:
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	case sum >= 0:
		var pseudo []byte
		if p.Protocol != 1 {
			pseudo = append(append(pseudo, p.Source.AsSlice()...), p.Destination.AsSlice()...)
			pseudo = append(pseudo, 0, 0, byte(len(b)>>8), byte(len(b)), 0, p.Protocol)
		}
		binary.BigEndian.PutUint16(b[sum:], checksum(append(pseudo, b...)))
	}
	return append(ipHeader(p, len(b)), b...)
}

func ipHeader(p *ruleset.Packet, length int) []byte {
	if p.Source.Is6() {
		h := []byte{6 << 4, 0, 0, 0, byte(length >> 8), byte(length), p.Protocol, 64}
		return append(append(h, p.Source.AsSlice()...), p.Destination.AsSlice()...)
	}
	h := []byte{4<<4 | 5, 0, 0, byte(20 + length), 0, 1, 0, 0, 64, p.Protocol, 0, 0}
	h = append(append(h, p.Source.AsSlice()...), p.Destination.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return h
}

// checksum of RFC 1071.
func checksum(b []byte) uint16 {
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// arrival is one of our packets as it came.
type arrival struct {
	number   uint32
	protocol uint8
	icmpType uint8
	source   netip.Addr
}

// decode reads an IP packet. Errors that quote one of ours have its end, but not its protocol.
func decode(b []byte) (a arrival, ok bool) {
	var payload []byte
	switch {
	case len(b) > 20 && b[0]>>4 == 4:
		a.protocol, a.source = b[9], netip.AddrFrom4([4]byte(b[12:16]))
		payload = b[min(len(b), int(b[0]&15)*4):]
	case len(b) > 40 && b[0]>>4 == 6:
		a.protocol, a.source = b[6], netip.AddrFrom16([16]byte(b[8:24]))
		payload = b[40:]
	default:
		return a, false
	}
	return a.from(payload)
}

// from decodes the payload of the IP header.
func (a arrival) from(payload []byte) (arrival, bool) {
	if len(payload) < 8 {
		return a, false
	}
	a.icmpType = payload[0]
	end := payload[len(payload)-8:]
	a.number = binary.BigEndian.Uint32(end[4:])
	return a, binary.BigEndian.Uint32(end) == magic
}

func TestPacketsAreKnownAgain(t *testing.T) {
	g := newGenerator(1)
	for n := range uint32(200) {
		_, p := g.packet()
		a, ok := decode(encode(&p, n))
		if !ok || a.number != n || a.protocol != p.Protocol || a.source != p.Source ||
			(p.Protocol == 1 || p.Protocol == 58) && a.icmpType != p.ICMPType {
			t.Errorf("%+v is read as %+v", p, a)
		}
	}
}
