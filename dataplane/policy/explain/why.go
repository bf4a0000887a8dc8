package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
)

// why returns the reason that a condition does not hold for the packet.
func why(t *ruleset.Table, m *ruleset.Match, p ruleset.Packet) string {
	if m == nil {
		return "the limit is not exceeded"
	}
	switch m.Field {
	case ruleset.Family:
		return fmt.Sprintf("it is about IPv%d, the packet is %s", m.Low, family(p.Source))
	case ruleset.Protocol:
		return compared(m.Not, "the protocol", ProtocolName(p.Protocol), ProtocolName(uint8(m.Low)))
	case ruleset.Source:
		return address(t, m, "source", p.Source)
	case ruleset.Destination:
		return address(t, m, "destination", p.Destination)
	case ruleset.SourcePort:
		return port(t, m, "the source port", p.SourcePort, p.Protocol)
	case ruleset.DestinationPort:
		return port(t, m, "the destination port", p.DestinationPort, p.Protocol)
	case ruleset.SourceEndpoint:
		return endpoint(t, m, p.Source, p.SourcePort, p.Protocol)
	case ruleset.DestinationEndpoint:
		return endpoint(t, m, p.Destination, p.DestinationPort, p.Protocol)
	case ruleset.ICMP:
		if p.Protocol != protoICMP && p.Protocol != protoICMPv6 {
			return "the protocol is " + ProtocolName(p.Protocol) + ", not icmp"
		}
		is := fmt.Sprintf("type %d", m.Low>>8)
		if m.Mask&0xff != 0 {
			is += fmt.Sprintf(" code %d", m.Low&0xff)
		}
		return compared(m.Not, "the packet's ICMP", fmt.Sprintf("type %d code %d", p.ICMPType, p.ICMPCode), is)
	}
	return "it wants " + m.String()
}

func compared(not bool, what, has, want string) string {
	if not {
		return fmt.Sprintf("%s is %s, which it excludes", what, has)
	}
	return fmt.Sprintf("%s is %s, not %s", what, has, want)
}

func address(t *ruleset.Table, m *ruleset.Match, what string, a netip.Addr) string {
	among := m.Prefix.String()
	if m.Set != "" {
		among = setText(t, m.Set)
	}
	if m.Not {
		return fmt.Sprintf("%s %s is in %s, which it excludes", what, a, among)
	}
	return fmt.Sprintf("%s %s is not in %s", what, a, among)
}

// setText describes a set by the source of its members.
func setText(t *ruleset.Table, name string) string {
	s, n, ok := t.Set(name)
	if !ok {
		return "the missing set " + name
	}
	if s.Origin == policy.LiteralSet {
		var words []string
		for e := range t.Elements(name) {
			if s.Type == ruleset.Ports {
				words = append(words, portRange(uint32(e.Low), uint32(e.High)))
			} else {
				words = append(words, e.Prefix.String())
			}
		}
		slices.Sort(words)
		return few(words)
	}
	things := "addresses"
	if n == 1 {
		things = "address"
	}
	return fmt.Sprintf("%s (%d %s)", bare(s.Comment), n, things)
}

func port(t *ruleset.Table, m *ruleset.Match, what string, has uint16, protocol uint8) string {
	want := portRange(m.Low, m.High)
	if m.Set != "" {
		want = setText(t, m.Set)
	}
	switch {
	case !hasPorts(protocol):
		return ProtocolName(protocol) + " has no ports"
	case has == 0:
		return "no port was given, and it is about port " + want
	case m.Not:
		return fmt.Sprintf("%s is %d, which it excludes", what, has)
	}
	return fmt.Sprintf("%s is %d, not %s", what, has, want)
}

func endpoint(t *ruleset.Table, m *ruleset.Match, a netip.Addr, port uint16, protocol uint8) string {
	has := fmt.Sprintf("%s %s/%d", a, ProtocolName(protocol), port)
	if !hasPorts(protocol) {
		return ProtocolName(protocol) + " has no ports"
	}
	if m.Not {
		return fmt.Sprintf("%s is in %s, which it excludes", has, setText(t, m.Set))
	}
	return fmt.Sprintf("%s is not in %s", has, setText(t, m.Set))
}
