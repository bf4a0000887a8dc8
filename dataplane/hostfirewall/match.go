package hostfirewall

import (
	"cmp"
	"math"
	"net/netip"
	"strings"
)

// fit is how many packets of a set fulfil a condition. Of two conditions the lesser one counts.
type fit uint8

const (
	none    fit = iota
	some        // not all
	unknown     // perhaps all
	all
)

// Bits that packets may have, whatever other programs do: the marks of Manx unless the packet says otherwise, and the
// kernel's own remarks on translation (IPS_SRC_NAT_DONE, IPS_DST_NAT_DONE). Other bits count as not set.
const (
	standardMarks  = 0x30000
	possibleStatus = 0x180
)

const (
	protocolTCP  = 6
	protocolUDP  = 17
	protocolSCTP = 132
	nfprotoIPv4  = 2
	nfprotoIPv6  = 10
)

// of returns how many of the packets a rule is about.
func (r *Rule) of(p *Packet) fit {
	result := all
	for i := range r.Matches {
		if result = min(result, r.Matches[i].of(p)); result == none {
			return none
		}
	}
	if len(r.Unread) > 0 {
		return min(result, unknown)
	}
	return result
}

func (m *Match) of(p *Packet) fit {
	switch m.Field {
	case InName:
		return m.name(p.In)
	case OutName:
		return m.name(p.Out)
	case Source:
		return m.address(p.Source)
	case Destination:
		return m.address(p.Destination)
	case Family:
		if p.Source.Addr().Is4() {
			return m.number(nfprotoIPv4, nfprotoIPv4)
		}
		return m.number(nfprotoIPv6, nfprotoIPv6)
	case Protocol:
		if p.Protocol == 0 {
			return m.number(1, math.MaxUint8)
		}
		return m.number(uint32(p.Protocol), uint32(p.Protocol))
	case SourcePort:
		return m.port(p, p.SourcePort)
	case DestinationPort:
		return m.port(p, p.DestinationPort)
	case State:
		return m.bits(p.State, 0)
	case Status:
		return m.bits(0, possibleStatus)
	case Mark:
		return m.bits(0, cmp.Or(p.Marks, standardMarks))
	}
	return unknown
}

// not inverts f if the condition is inverted.
func (m *Match) not(f fit) fit {
	switch {
	case !m.Not, f == some, f == unknown:
		return f
	case f == all:
		return none
	}
	return all
}

// name compares an interface. Without one a condition does not hold, and neither does its inversion.
func (m *Match) name(i Interface) fit {
	if i.Any {
		return some
	}
	if i.Name == "" {
		return none
	}
	for _, v := range m.Values {
		if v.Text == i.Name || v.Begins && strings.HasPrefix(i.Name, v.Text) {
			return m.not(all)
		}
	}
	return m.not(none)
}

func (m *Match) address(p netip.Prefix) fit {
	result := none
	for _, v := range m.Values {
		if v.From.Is4() == p.Addr().Is4() {
			result = max(result, within(p.Masked().Addr(), last(p), v.From, v.To, netip.Addr.Compare))
		}
	}
	return m.not(result)
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// port: a protocol without ports fulfils no condition about them.
func (m *Match) port(p *Packet, port uint16) fit {
	switch p.Protocol {
	case 0:
		return min(some, m.number(0, math.MaxUint16))
	case protocolTCP, protocolUDP, protocolSCTP:
	default:
		return none
	}
	if port == 0 {
		return m.number(0, math.MaxUint16)
	}
	return m.number(uint32(port), uint32(port))
}

func (m *Match) number(low, high uint32) fit {
	result := none
	for _, v := range m.Values {
		result = max(result, within(low, high, v.Low, v.High, cmp.Compare))
	}
	return m.not(result)
}

// within returns how much of a range is in another one.
func within[T any](low, high, from, to T, compare func(T, T) int) fit {
	switch {
	case compare(high, from) < 0, compare(low, to) > 0:
		return none
	case compare(low, from) >= 0 && compare(high, to) <= 0:
		return all
	}
	return some
}

// bits compares bits, of which some may be set or not.
func (m *Match) bits(value, possible uint32) fit {
	if possible &= m.Mask; possible == 0 {
		return m.number(value&m.Mask, value&m.Mask)
	}
	for _, v := range m.Values {
		if v.Low != v.High || v.Low&^possible == value&m.Mask&^possible {
			return unknown
		}
	}
	return m.not(none)
}
