package explain

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Transport protocols.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

var protocolNames = map[uint8]string{
	protoICMP: "icmp", protoTCP: "tcp", protoUDP: "udp", protoICMPv6: "icmpv6", protoSCTP: "sctp", 136: "udplite",
	4: "ipip",
}

// ProtocolName is the name of an IP protocol in policies, its number if it has none.
func ProtocolName(n uint8) string {
	if name, ok := protocolNames[n]; ok {
		return name
	}
	return "protocol " + strconv.Itoa(int(n))
}

func hasPorts(protocol uint8) bool {
	return protocol == protoTCP || protocol == protoUDP || protocol == protoSCTP || protocol == 136
}

// Flow is the protocol and the port of a packet.
type Flow struct {
	Protocol uint8
	Port     uint16 // of the destination; 0: none in particular
	// SourcePort is the port of one particular packet; 0: none in particular.
	SourcePort uint16
	HasICMP    bool // ICMPType is given; without, it is an echo request
	ICMPType   uint8
	ICMPCode   uint8
}

// ParseFlow reads "tcp/80", "udp/53", "icmp", "icmp/3", "icmp/3/1", "sctp/5000" or the number of a protocol. Empty is
// tcp.
func ParseFlow(text string) (Flow, error) {
	const want = "want PROTOCOL or PROTOCOL/PORT, such as tcp/80, udp/53, icmp, icmp/8/0 (type and code) or the " +
		"number of a protocol"
	if text == "" {
		return Flow{Protocol: protoTCP}, nil
	}
	name, rest, more := strings.Cut(strings.ToLower(text), "/")
	var f Flow
	for n, known := range protocolNames {
		if known == name {
			f.Protocol = n
		}
	}
	if f.Protocol == 0 {
		n, err := strconv.ParseUint(name, 10, 8)
		port, _ := strconv.ParseUint(name, 10, 16)
		switch {
		case (err != nil || n == 0) && port > 0 && !more:
			return f, fmt.Errorf("%q is not a protocol; did you mean tcp/%d? %s", text, port, want)
		case (err != nil || n == 0) && !more:
			return f, fmt.Errorf("%q is not a protocol: %s", text, want)
		case err != nil || n == 0:
			return f, fmt.Errorf("%q: %q is not a protocol: %s", text, name, want)
		}
		f.Protocol = uint8(n)
	}
	switch {
	case !more:
		return f, nil
	case hasPorts(f.Protocol):
		n, err := strconv.ParseUint(rest, 10, 16)
		if err != nil || n == 0 {
			return f, fmt.Errorf("%q: %q is not a port from 1 to 65535: %s", text, rest, want)
		}
		f.Port = uint16(n)
		return f, nil
	case f.Protocol == protoICMP || f.Protocol == protoICMPv6:
		kind, code, hasCode := strings.Cut(rest, "/")
		n, err := strconv.ParseUint(kind, 10, 8)
		if err != nil {
			return f, fmt.Errorf("%q: %q is not an ICMP type from 0 to 255: %s", text, kind, want)
		}
		f.HasICMP, f.ICMPType = true, uint8(n)
		if hasCode {
			if n, err = strconv.ParseUint(code, 10, 8); err != nil {
				return f, fmt.Errorf("%q: %q is not an ICMP code from 0 to 255: %s", text, code, want)
			}
			f.ICMPCode = uint8(n)
		}
		return f, nil
	}
	return f, fmt.Errorf("%q: %s has no ports: %s", text, ProtocolName(f.Protocol), want)
}

// of fits the flow to a family: ICMP is another protocol in each.
func (f Flow) of(family netip.Addr) Flow {
	switch {
	case f.Protocol == protoICMP && family.Is6():
		f.Protocol = protoICMPv6
	case f.Protocol == protoICMPv6 && family.Is4():
		f.Protocol = protoICMP
	}
	if !f.HasICMP {
		switch f.Protocol {
		case protoICMP:
			f.ICMPType = 8
		case protoICMPv6:
			f.ICMPType = 128
		}
	}
	return f
}

// String is the flow as people write it.
func (f Flow) String() string {
	name := ProtocolName(f.Protocol)
	switch {
	case f.Port != 0:
		return name + "/" + strconv.Itoa(int(f.Port))
	case f.Protocol == protoICMP || f.Protocol == protoICMPv6:
		return fmt.Sprintf("%s type %d code %d", name, f.ICMPType, f.ICMPCode)
	}
	return name
}
