package lab

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
)

// Chunks of SCTP (RFC 9260, section 3): just enough to open an association and to answer that. Not every kernel has
// SCTP itself, and connection tracking requires real chunks.
const (
	SCTPInit    = 1
	SCTPInitAck = 2
	SCTPAbort   = 6
)

const sctpHeader = 12

// SCTPPacket is the first chunk of a packet and its headers.
type SCTPPacket struct {
	Source, Destination uint16
	Verification        uint32
	Chunk               byte
	Initiate            uint32 // tag of INIT and INIT ACK
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode makes an INIT or INIT ACK.
func (p SCTPPacket) Encode() []byte {
	const cookie = "state" // the parameter that every INIT ACK has
	b := make([]byte, sctpHeader, sctpHeader+32)
	binary.BigEndian.PutUint16(b[0:], p.Source)
	binary.BigEndian.PutUint16(b[2:], p.Destination)
	binary.BigEndian.PutUint32(b[4:], p.Verification)
	length := 20
	if p.Chunk == SCTPInitAck {
		length += 4 + len(cookie)
	}
	b = append(b, p.Chunk, 0, 0, byte(length))
	b = binary.BigEndian.AppendUint32(b, p.Initiate)
	b = binary.BigEndian.AppendUint32(b, 65536) // receiver window
	b = append(b, 0, 1, 0, 1)                   // streams out and in
	b = binary.BigEndian.AppendUint32(b, 1)     // first TSN
	if p.Chunk == SCTPInitAck {
		b = append(b, 0, 7, 0, byte(4+len(cookie)))
		b = append(b, cookie...)
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// DecodeSCTP reads the beginning of a packet.
func DecodeSCTP(b []byte) (p SCTPPacket, ok bool) {
	if len(b) < sctpHeader+4 {
		return p, false
	}
	p = SCTPPacket{Source: binary.BigEndian.Uint16(b[0:]), Destination: binary.BigEndian.Uint16(b[2:]),
		Verification: binary.BigEndian.Uint32(b[4:]), Chunk: b[sctpHeader]}
	if len(b) >= sctpHeader+8 {
		p.Initiate = binary.BigEndian.Uint32(b[sctpHeader+4:])
	}
	return p, true
}

// ServeSCTP answers INITs to ports of an address, in the namespace of the calling thread.
func ServeSCTP(ip netip.Addr, ports map[uint16]bool) (io.Closer, error) {
	network := "ip4:132"
	if ip.Is6() {
		network = "ip6:132"
	}
	c, err := net.ListenPacket(network, ip.String())
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if p, ok := DecodeSCTP(buf[:n]); ok && p.Chunk == SCTPInit && ports[p.Destination] {
				reply := SCTPPacket{Source: p.Destination, Destination: p.Source, Verification: p.Initiate,
					Chunk: SCTPInitAck, Initiate: 1 + p.Initiate}
				_, _ = c.WriteTo(reply.Encode(), from)
			}
		}
	}()
	return c, nil
}
