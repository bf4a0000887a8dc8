package nftables

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// match appends the expressions of one condition.
func (e *encoder) match(m ruleset.Match) error {
	switch m.Field {
	case ruleset.Family:
		return e.matchFamily(m)
	case ruleset.InInterface:
		e.matchInterface(m, expr.MetaKeyIIFNAME)
	case ruleset.OutInterface:
		e.matchInterface(m, expr.MetaKeyOIFNAME)
	case ruleset.Protocol:
		e.hasPorts = e.hasPorts || !m.Not && protocolsWithPorts[m.Low]
		e.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1})
		e.compare(m.Not, []byte{byte(m.Low)})
	case ruleset.Source:
		return e.matchAddress(m, sourceAt)
	case ruleset.Destination:
		return e.matchAddress(m, destinationAt)
	case ruleset.SourcePort:
		return e.matchPort(m, 0)
	case ruleset.DestinationPort:
		return e.matchPort(m, 2)
	case ruleset.SourceEndpoint:
		return e.matchEndpoint(m, sourceAt, 0)
	case ruleset.DestinationEndpoint:
		return e.matchEndpoint(m, destinationAt, 2)
	case ruleset.ICMP:
		e.matchICMP(m)
	case ruleset.ConnState:
		e.add(&expr.Ct{Key: expr.CtKeySTATE, Register: reg1})
		e.testBits(m)
	case ruleset.ConnStatus:
		e.add(&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1})
		e.testBits(m)
	case ruleset.PacketMark:
		e.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1})
		if m.Mask != ^uint32(0) {
			e.keepBits(host32(m.Mask))
		}
		e.compare(m.Not, host32(m.Low&m.Mask))
	case ruleset.ConnSource:
		return e.matchConnection(m, directionOriginal)
	case ruleset.ConnReplySource:
		return e.matchConnection(m, directionReply)
	case ruleset.HopLimit:
		if e.family == 0 {
			return fmt.Errorf("it matches a hop limit without a family before")
		}
		at := map[uint32]uint32{4: 8, 6: 7}[e.family]
		e.add(&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: 1})
		e.compare(m.Not, []byte{byte(m.Low)})
	case ruleset.Fragment:
		return e.matchFragment(m)
	case ruleset.VNI:
		return e.matchVNI(m)
	default:
		return e.matchRoute(m)
	}
	return nil
}

// Directions of a connection (enum ip_conntrack_dir).
const (
	directionOriginal = 0
	directionReply    = 1
)

// matchConnection compares the source of one direction of the connection. The expression is written here since
// google/nftables leaves the direction out.
func (e *encoder) matchConnection(m ruleset.Match, direction uint32) error {
	if !m.Prefix.IsValid() || !m.Prefix.IsSingleIP() {
		return fmt.Errorf("it compares the source of a connection with %s, which is no address", m.Prefix)
	}
	key := uint32(unix.NFT_CT_SRC_IP)
	if m.Prefix.Addr().Is6() {
		key = unix.NFT_CT_SRC_IP6
	}
	b := e.out
	element := b.NestFlagged(unix.NFTA_LIST_ELEM)
	b.AttrText(unix.NFTA_EXPR_NAME, "ct")
	data := b.NestFlagged(unix.NFTA_EXPR_DATA)
	b.AttrBig32(unix.NFTA_CT_KEY, key)
	b.AttrBig32(unix.NFTA_CT_DREG, reg1)
	b.Attr(unix.NFTA_CT_DIRECTION, []byte{byte(direction)})
	b.EndNest(data)
	b.EndNest(element)
	e.compare(m.Not, m.Prefix.Addr().AsSlice())
	return nil
}

var protocolsWithPorts = map[uint32]bool{
	unix.IPPROTO_TCP: true, unix.IPPROTO_UDP: true, unix.IPPROTO_SCTP: true, unix.IPPROTO_DCCP: true,
	unix.IPPROTO_UDPLITE: true,
}

// compare compares register 1; neq if it is negated.
func (e *encoder) compare(not bool, data []byte) {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	e.add(&expr.Cmp{Op: op, Register: reg1, Data: data})
}

// keepBits leaves only some bits in register 1.
func (e *encoder) keepBits(mask []byte) {
	e.add(&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: uint32(len(mask)), Mask: mask,
		Xor: make([]byte, len(mask))})
}

// testBits matches if one of the bits is set. A comparison with the whole word would miss words with more bits.
func (e *encoder) testBits(m ruleset.Match) {
	e.keepBits(host32(m.Mask))
	e.compare(!m.Not, host32(0))
}

// never holds for no packet.
func (e *encoder) never() {
	e.add(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1})
	e.compare(false, []byte{unix.NFPROTO_UNSPEC})
}

var nfFamilies = map[uint32]byte{4: unix.NFPROTO_IPV4, 6: unix.NFPROTO_IPV6}

func (e *encoder) matchFamily(m ruleset.Match) error {
	family, ok := nfFamilies[m.Low]
	if !ok {
		return fmt.Errorf("family %d is neither 4 nor 6", m.Low)
	}
	e.family = m.Low
	if m.Not {
		e.family = 10 - m.Low // the inet family has these two
	}
	e.add(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1})
	e.compare(m.Not, []byte{family})
	return nil
}

// needFamily makes sure that only packets of a family go on, since addresses are elsewhere in those of the other.
func (e *encoder) needFamily(family uint32) error {
	if e.family != 0 && e.family != family {
		return fmt.Errorf("it speaks of both IPv%d and IPv%d", e.family, family)
	}
	if e.family == 0 {
		return e.matchFamily(ruleset.Match{Field: ruleset.Family, Low: family})
	}
	return nil
}

func (e *encoder) matchInterface(m ruleset.Match, key expr.MetaKey) {
	name, prefix := strings.CutSuffix(m.Name, "*")
	data := ifname(name)
	switch {
	case prefix && name == "":
		if m.Not {
			e.never()
		}
		return
	case prefix:
		data = []byte(name)
	}
	e.add(&expr.Meta{Key: key, Register: reg1})
	e.compare(m.Not, data)
}

// addressAt is where an address is in each family's header.
type addressAt struct{ v4, v6 uint32 }

var sourceAt, destinationAt = addressAt{v4: 12, v6: 8}, addressAt{v4: 16, v6: 24}

func (e *encoder) loadAddress(at addressAt, bytes uint32) {
	offset := at.v4
	if e.family == 6 {
		offset = at.v6
	}
	e.add(&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: bytes})
}

func (e *encoder) addressBytes() uint32 {
	if e.family == 6 {
		return 16
	}
	return 4
}

func (e *encoder) matchAddress(m ruleset.Match, at addressAt) error {
	if m.Set != "" {
		if e.family == 0 {
			return fmt.Errorf("it matches the addresses of set %s without a family before", m.Set)
		}
		e.loadAddress(at, e.addressBytes())
		e.add(&expr.Lookup{SourceRegister: reg1, SetName: m.Set, Invert: m.Not})
		return nil
	}
	if !m.Prefix.IsValid() {
		return fmt.Errorf("it matches neither a prefix nor a set of addresses")
	}
	family := uint32(6)
	if m.Prefix.Addr().Is4() {
		family = 4
	}
	if err := e.needFamily(family); err != nil {
		return err
	}
	e.matchPrefix(m.Not, m.Prefix.Masked(), at)
	return nil
}

func (e *encoder) matchPrefix(not bool, p netip.Prefix, at addressAt) {
	data := p.Addr().AsSlice()
	bits := p.Bits()
	switch {
	case bits == 0:
		if not {
			e.never()
		}
	case bits%8 == 0: // as nft writes it
		e.loadAddress(at, uint32(bits/8))
		e.compare(not, data[:bits/8])
	default:
		e.loadAddress(at, uint32(len(data)))
		mask := make([]byte, len(data))
		for i := range bits {
			mask[i/8] |= 0x80 >> (i % 8)
		}
		e.keepBits(mask)
		e.compare(not, data)
	}
}

func (e *encoder) matchPort(m ruleset.Match, offset uint32) error {
	if !e.hasPorts {
		return fmt.Errorf("it matches ports without a protocol before that has some")
	}
	e.add(&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2})
	switch {
	case m.Set != "":
		e.add(&expr.Lookup{SourceRegister: reg1, SetName: m.Set, Invert: m.Not})
	case m.High == 0 || m.High == m.Low:
		e.compare(m.Not, bigEndian(uint16(m.Low)))
	default:
		op := expr.CmpOpEq
		if m.Not {
			op = expr.CmpOpNeq
		}
		e.add(&expr.Range{Op: op, Register: reg1, FromData: bigEndian(uint16(m.Low)),
			ToData: bigEndian(uint16(m.High))})
	}
	return nil
}

// matchEndpoint loads address, protocol and port one after the other: each fills whole registers of 4 bytes.
func (e *encoder) matchEndpoint(m ruleset.Match, at addressAt, port uint32) error {
	if e.family == 0 || m.Set == "" {
		return fmt.Errorf("it matches the endpoints of set %q without a family before", m.Set)
	}
	next := unix.NFT_REG32_00 + e.addressBytes()/4
	e.loadAddress(at, e.addressBytes())
	e.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: port, Len: 2},
		&expr.Lookup{SourceRegister: reg1, SetName: m.Set, Invert: m.Not})
	return nil
}

// matchICMP compares type and code at once, so that its negation is "not this type and code".
func (e *encoder) matchICMP(m ruleset.Match) {
	load := &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Len: 2}
	switch m.Mask {
	case 0xff00:
		load.Len = 1
		e.add(load)
		e.compare(m.Not, []byte{byte(m.Low >> 8)})
	case 0xffff:
		e.add(load)
		e.compare(m.Not, bigEndian(uint16(m.Low)))
	default:
		e.add(load)
		e.keepBits(bigEndian(uint16(m.Mask)))
		e.compare(m.Not, bigEndian(uint16(m.Low&m.Mask)))
	}
}

// matchFragment tests the header of IPv4 for "more fragments" or an offset, and IPv6 for a fragment header.
func (e *encoder) matchFragment(m ruleset.Match) error {
	switch e.family {
	case 4:
		e.add(&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 6, Len: 2})
		e.keepBits(bigEndian(0x3fff))
		e.compare(!m.Not, bigEndian(0))
	case 6:
		e.add(&expr.Exthdr{DestRegister: reg1, Type: unix.IPPROTO_FRAGMENT, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT})
		present := byte(1)
		if m.Not {
			present = 0
		}
		e.compare(false, []byte{present})
	default:
		return fmt.Errorf("it matches fragments without a family before")
	}
	return nil
}

// matchVNI compares the network in a VXLAN header: of 24 bits, after the header of UDP with 8 bytes, and flags.
func (e *encoder) matchVNI(m ruleset.Match) error {
	if !e.hasPorts {
		return fmt.Errorf("it matches a VNI without a protocol before that has ports")
	}
	if m.Low > 1<<24-1 {
		return fmt.Errorf("the VNI %d has more than 24 bits", m.Low)
	}
	e.add(&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 12, Len: 3})
	e.compare(m.Not, []byte{byte(m.Low >> 16), byte(m.Low >> 8), byte(m.Low)})
	return nil
}

// matchRoute looks up the routing table.
func (e *encoder) matchRoute(m ruleset.Match) error {
	x := &expr.Fib{Register: reg1}
	result := host32(unix.RTN_LOCAL)
	switch m.Field {
	case ruleset.NoReturnRoute: // no outgoing interface
		x.FlagSADDR, x.FlagMARK, x.FlagIIF, x.ResultOIF = true, true, true, true
		result = host32(0)
	case ruleset.SourceLocal:
		x.FlagSADDR, x.ResultADDRTYPE = true, true
	case ruleset.DestinationLocal:
		x.FlagDADDR, x.ResultADDRTYPE = true, true
	case ruleset.SourceOfOutInterface:
		x.FlagSADDR, x.FlagOIF, x.ResultADDRTYPE = true, true, true
	case ruleset.SourceRoute:
		name, prefix := strings.CutSuffix(m.Name, "*")
		if result = ifname(name); prefix {
			result = []byte(name)
		}
		if name == "" {
			return fmt.Errorf("it matches the route to the source without an interface")
		}
		x.FlagSADDR, x.ResultOIFNAME = true, true
	default:
		return fmt.Errorf("field %d is unknown", m.Field)
	}
	e.add(x)
	e.compare(m.Not, result)
	return nil
}
