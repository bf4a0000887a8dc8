package ruleset

import (
	"net/netip"
	"strings"
)

// Transport protocols that matter.
const (
	protoICMP    = 1
	protoTCP     = 6
	protoUDP     = 17
	protoDCCP    = 33
	protoICMPv6  = 58
	protoSCTP    = 132
	protoUDPLite = 136
)

// holds reports whether a rule applies to the packet, and if not, the first match that does not hold: nil if it is the
// limit.
func (r *run) holds(rule *Rule) (failed *Match, ok bool) {
	for i := range rule.Matches {
		if m := &rule.Matches[i]; !r.matches(m) {
			return m, false
		}
	}
	return nil, rule.Over == Limit{}
}

// matches applies the negation of a Match. A field that the packet lacks matches neither way: the match fails.
func (r *run) matches(m *Match) bool {
	is, has := r.compare(m)
	return has && is != m.Not
}

// compare compares one field; has reports whether the packet has it.
func (r *run) compare(m *Match) (is, has bool) {
	p := &r.packet
	switch m.Field {
	case Family:
		return family(p.Source) == m.Low, true
	case InInterface:
		return matchesName(m.Name, p.In), true
	case OutInterface:
		return matchesName(m.Name, p.Out), true
	case Protocol:
		return uint32(p.Protocol) == m.Low, true
	case Source:
		return r.address(m, p.Source)
	case Destination:
		return r.address(m, p.Destination)
	case SourcePort:
		return r.port(m, p.SourcePort)
	case DestinationPort:
		return r.port(m, p.DestinationPort)
	case SourceEndpoint:
		return r.endpoint(m, p.Source, p.SourcePort)
	case DestinationEndpoint:
		return r.endpoint(m, p.Destination, p.DestinationPort)
	case ICMP:
		typeCode := uint32(p.ICMPType)<<8 | uint32(p.ICMPCode)
		return typeCode&m.Mask == m.Low, p.Protocol == protoICMP || p.Protocol == protoICMPv6
	case ConnState:
		return r.state()&m.Mask != 0, true
	case ConnStatus:
		return p.Status&m.Mask != 0, r.state()&(ConnInvalid|ConnUntracked) == 0
	case PacketMark:
		return p.Mark&m.Mask == m.Low, true
	case NoReturnRoute:
		return r.noReturnRoute(), true
	case SourceLocal:
		return r.isLocal(p.Source), true
	case DestinationLocal:
		return r.isLocal(p.Destination), true
	case SourceOfOutInterface:
		return r.host.OwnsAddress != nil && r.host.OwnsAddress(p.Out, p.Source), true
	case SourceRoute:
		return r.host.ReturnInterface != nil && matchesName(m.Name, r.host.ReturnInterface(p.Source)), true
	case HopLimit:
		return uint32(p.HopLimit) == m.Low, true
	case ConnSource:
		return p.ConnSource == m.Prefix.Addr(), p.ConnSource.BitLen() == m.Prefix.Addr().BitLen()
	case ConnReplySource:
		return p.ConnReplySource == m.Prefix.Addr(), p.ConnReplySource.BitLen() == m.Prefix.Addr().BitLen()
	case Fragment:
		return p.Fragment && !r.whole, true
	case VNI:
		return p.VNI == m.Low, p.VXLAN && p.Protocol == protoUDP
	}
	return false, false
}

func family(a netip.Addr) uint32 {
	if a.Is4() {
		return 4
	}
	return 6
}

func matchesName(pattern, name string) bool {
	if start, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, start)
	}
	return pattern == name
}

// state is the kernel's state of the connection here: none before tracking, unless tracking was turned off.
func (r *run) state() uint32 {
	if r.early && r.packet.State != ConnUntracked {
		return ConnInvalid
	}
	return r.packet.State
}

// address: a packet of one family has no address of the other.
func (r *run) address(m *Match, a netip.Addr) (is, has bool) {
	if m.Set == "" {
		return m.Prefix.Contains(a), m.Prefix.Addr().Is4() == a.Is4()
	}
	s := r.table.sets[m.Set]
	if s == nil || (s.Type == Addresses4) != a.Is4() {
		return false, false
	}
	set, ok := s.elements.(interface{ covers(netip.Addr) bool })
	return ok && set.covers(a), ok
}

func hasPorts(protocol uint8) bool {
	switch protocol {
	case protoTCP, protoUDP, protoSCTP, protoUDPLite, protoDCCP:
		return true
	}
	return false
}

func (r *run) port(m *Match, port uint16) (is, has bool) {
	if !hasPorts(r.packet.Protocol) {
		return false, false
	}
	if m.Set == "" {
		return uint32(port) >= m.Low && uint32(port) <= max(m.Low, m.High), true
	}
	s := r.table.sets[m.Set]
	if s == nil {
		return false, false
	}
	set, ok := s.elements.(*portRanges)
	return ok && set.covers(port), ok
}

// endpoint: a packet without ports is in no set of endpoints.
func (r *run) endpoint(m *Match, a netip.Addr, port uint16) (is, has bool) {
	s := r.table.sets[m.Set]
	if s == nil || (s.Type == Endpoints4) != a.Is4() {
		return false, false
	}
	e := Element{Prefix: netip.PrefixFrom(a, a.BitLen()), Protocol: r.packet.Protocol, Low: port}
	return hasPorts(r.packet.Protocol) && s.elements.has(e), true
}

func (r *run) isLocal(a netip.Addr) bool {
	return a.IsLoopback() || r.host.IsLocal != nil && r.host.IsLocal(a)
}

// noReturnRoute is the kernel's reverse path lookup bound to the incoming interface. It passes packets of a host that
// has no address yet (DHCP, duplicate address detection), and link-local IPv6 sources, which are of the interface by
// definition.
func (r *run) noReturnRoute() bool {
	p := &r.packet
	switch {
	case r.host.ReturnInterface == nil || p.In == "lo":
		return false
	case p.Source.Is4() && p.Source.As4()[0] == 0 &&
		(p.Destination.IsLinkLocalMulticast() || p.Destination == netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return false
	case p.Source == netip.IPv6Unspecified() && p.Protocol == protoICMPv6 &&
		(p.Destination.IsLinkLocalUnicast() || p.Destination.IsLinkLocalMulticast()):
		return false
	case p.Source.Is6() && p.Source.IsLinkLocalUnicast():
		return false
	}
	return r.host.ReturnInterface(p.Source) != p.In
}
