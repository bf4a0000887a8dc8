package main

import (
	"encoding/binary"
	"hash/crc32"
)

// Probes speak just enough SCTP (RFC 9260, section 3) to open an association and to answer that: not every kernel has SCTP
// itself, and connection tracking wants to see real chunks.
const (
	sctpHeader   = 12
	chunkInit    = 1
	chunkInitAck = 2
	chunkAbort   = 6
)

// sctpPacket is the first chunk of a packet and what leads to it.
type sctpPacket struct {
	source, destination uint16
	verification        uint32
	chunk               byte
	initiate            uint32 // tag of INIT and INIT ACK
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode makes an INIT or INIT ACK.
func (p sctpPacket) encode() []byte {
	const cookie = "state" // the parameter that every INIT ACK has
	b := make([]byte, sctpHeader, sctpHeader+32)
	binary.BigEndian.PutUint16(b[0:], p.source)
	binary.BigEndian.PutUint16(b[2:], p.destination)
	binary.BigEndian.PutUint32(b[4:], p.verification)
	length := 20
	if p.chunk == chunkInitAck {
		length += 4 + len(cookie)
	}
	b = append(b, p.chunk, 0, 0, byte(length))
	b = binary.BigEndian.AppendUint32(b, p.initiate)
	b = binary.BigEndian.AppendUint32(b, 65536) // receiver window
	b = append(b, 0, 1, 0, 1)                   // streams out and in
	b = binary.BigEndian.AppendUint32(b, 1)     // first TSN
	if p.chunk == chunkInitAck {
		b = append(b, 0, 7, 0, byte(4+len(cookie)))
		b = append(b, cookie...)
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// decodeSCTP reads the beginning of a packet.
func decodeSCTP(b []byte) (p sctpPacket, ok bool) {
	if len(b) < sctpHeader+4 {
		return p, false
	}
	p = sctpPacket{source: binary.BigEndian.Uint16(b[0:]), destination: binary.BigEndian.Uint16(b[2:]),
		verification: binary.BigEndian.Uint32(b[4:]), chunk: b[sctpHeader]}
	if len(b) >= sctpHeader+8 {
		p.initiate = binary.BigEndian.Uint32(b[sctpHeader+4:])
	}
	return p, true
}
