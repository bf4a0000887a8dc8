package conversion

import (
	"cmp"
	"maps"
	"slices"

	"github.com/projectcalico/api/pkg/lib/numorstring"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// protocolPorts is one protocol, nil for any, with its ports, none for all.
type protocolPorts struct {
	protocol *numorstring.Protocol
	ports    []numorstring.Port
}

// portGroup is the part of a rule about one protocol.
type portGroup struct {
	all    bool // a port without a number or name
	names  []string
	ranges [][2]uint16
}

// portGroups has the parts of a rule by protocol name; "" is any protocol.
type portGroups map[string]*portGroup

func (g portGroups) of(protocol string) *portGroup {
	if g[protocol] == nil {
		g[protocol] = &portGroup{}
	}
	return g[protocol]
}

// list returns the protocols in the order of their names.
func (g portGroups) list() []protocolPorts {
	var list []protocolPorts
	for _, name := range slices.Sorted(maps.Keys(g)) {
		p := protocolPorts{ports: g[name].ports()}
		if name != "" {
			protocol := numorstring.ProtocolFromString(name)
			p.protocol = &protocol
		}
		list = append(list, p)
	}
	return list
}

// byProtocol groups ports by protocol. An empty list matches any protocol.
func byProtocol(field string, ports []networkingv1.NetworkPolicyPort) ([]protocolPorts, error) {
	if len(ports) == 0 {
		return []protocolPorts{{}}, nil
	}
	groups := portGroups{}
	for i, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil && *p.Protocol != "" {
			protocol = *p.Protocol
		}
		switch protocol {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			return nil, wrong(at(field, i)+".protocol", protocol, "must be TCP, UDP or SCTP")
		}
		if err := groups.of(string(protocol)).add(at(field, i), p); err != nil {
			return nil, err
		}
	}
	return groups.list(), nil
}

// add refuses ambiguous ports: a wrong guess could allow too much.
func (g *portGroup) add(field string, p networkingv1.NetworkPolicyPort) error {
	switch {
	case p.Port == nil && p.EndPort != nil:
		return wrong(field+".endPort", *p.EndPort, "needs port, where the range begins")
	case p.Port == nil:
		g.all = true
		return nil
	case p.Port.Type == intstr.String:
		if msgs := validation.IsValidPortName(p.Port.StrVal); len(msgs) > 0 {
			return wrong(field+".port", p.Port.StrVal, "must be the name of a port: %s", msgs[0])
		}
		if p.EndPort != nil {
			return wrong(field+".endPort", *p.EndPort, "cannot stand beside the name of a port")
		}
		g.names = append(g.names, p.Port.StrVal)
		return nil
	}
	low, high := p.Port.IntVal, p.Port.IntVal
	if p.EndPort != nil {
		high = *p.EndPort
	}
	r, err := portRange(field, low, high)
	g.ranges = append(g.ranges, r)
	return err
}

// ports returns the names, then the numbers in as few ranges as possible; none for the whole protocol.
func (g *portGroup) ports() []numorstring.Port {
	if g.all {
		return nil
	}
	var list []numorstring.Port
	slices.Sort(g.names)
	for _, n := range slices.Compact(g.names) {
		list = append(list, numorstring.NamedPort(n))
	}
	for _, r := range merge(g.ranges) {
		list = append(list, numorstring.Port{MinPort: r[0], MaxPort: r[1]})
	}
	return list
}

// portRange checks a range, both ends included.
func portRange(field string, low, high int32) ([2]uint16, error) {
	if low < 1 || low > 65535 {
		return [2]uint16{}, wrong(field+".port", low, "must be from 1 to 65535")
	}
	if high < low || high > 65535 {
		return [2]uint16{}, wrong(field+".endPort", high, "must be from %d, where the range begins, to 65535", low)
	}
	return [2]uint16{uint16(low), uint16(high)}, nil
}

// merge returns the same ports in as few ranges as possible.
func merge(ranges [][2]uint16) [][2]uint16 {
	slices.SortFunc(ranges, func(a, b [2]uint16) int {
		return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1]))
	})
	var list [][2]uint16
	for _, r := range ranges {
		if n := len(list); n > 0 && uint32(r[0]) <= uint32(list[n-1][1])+1 {
			list[n-1][1] = max(list[n-1][1], r[1])
		} else {
			list = append(list, r)
		}
	}
	return list
}
