package bgp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ExtendedCommunity is an extended community (RFC 4360) as in a message.
type ExtendedCommunity [8]byte

// Of the first octet of an extended community without its bit "not transitive" (RFC 4360 sections 2 and 3, RFC 5668).
const (
	extendedTwoOctetAS = iota
	extendedAddress
	extendedFourOctetAS

	extendedNotTransitive = 0x40
)

// name is "rt" for a route target, "ro" for a route origin, and empty for others (RFC 4360 sections 4 and 5).
func (c ExtendedCommunity) name() string {
	if c[0] > extendedFourOctetAS { // those that are not transitive have no such subtypes (RFC 7153 section 5.2)
		return ""
	}
	return map[byte]string{2: "rt", 3: "ro"}[c[1]]
}

// Administrator returns the two parts of the value: an AS number or IPv4 address as text, and the number that is local
// to it. ok is false for types of other structure.
func (c ExtendedCommunity) Administrator() (global string, local uint32, ok bool) {
	switch c[0] &^ extendedNotTransitive {
	case extendedTwoOctetAS:
		return fmt.Sprint(binary.BigEndian.Uint16(c[2:])), binary.BigEndian.Uint32(c[4:]), true
	case extendedAddress:
		return netip.AddrFrom4([4]byte(c[2:6])).String(), uint32(binary.BigEndian.Uint16(c[6:])), true
	case extendedFourOctetAS:
		return fmt.Sprint(binary.BigEndian.Uint32(c[2:])), uint32(binary.BigEndian.Uint16(c[6:])), true
	}
	return "", 0, false
}

// String is for example "rt:64512:100", or "0x" and all octets for those without a name.
func (c ExtendedCommunity) String() string {
	if name := c.name(); name != "" {
		global, local, _ := c.Administrator()
		return fmt.Sprintf("%s:%s:%d", name, global, local)
	}
	return fmt.Sprintf("%#x", c[:])
}
