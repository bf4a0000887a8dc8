package property

import (
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// firstAction returns the action of the first rule that matches and decides; empty without such a rule.
func (r *reference) firstAction(list []v3.Rule, namespace string, p *ruleset.Packet) v3.Action {
	for i := range list {
		if list[i].Action != v3.Log && r.matches(&list[i], namespace, p) {
			return list[i].Action
		}
	}
	return ""
}

func (r *reference) matches(rule *v3.Rule, namespace string, p *ruleset.Packet) bool {
	v4 := p.Source.Is4()
	if rule.IPVersion != nil && (*rule.IPVersion == 4) != v4 {
		return false
	}
	if rule.Protocol != nil && protocolOf(*rule.Protocol) != p.Protocol || rule.NotProtocol != nil &&
		protocolOf(*rule.NotProtocol) == p.Protocol {
		return false
	}
	if f := rule.ICMP; f != nil && !icmpIs(f, p) || rule.NotICMP != nil && icmpIs(rule.NotICMP, p) {
		return false
	}
	protocol := uint8(0)
	if rule.Protocol != nil {
		protocol = protocolOf(*rule.Protocol)
	}
	return r.side(&rule.Source, namespace, protocol, p, p.Source, p.SourcePort, false) &&
		r.side(&rule.Destination, namespace, protocol, p, p.Destination, p.DestinationPort, true)
}

func protocolOf(p numorstring.Protocol) uint8 {
	if p.Type == numorstring.NumOrStringNum {
		return p.NumVal
	}
	return map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58}[strings.ToLower(p.StrVal)]
}

func icmpIs(f *v3.ICMPFields, p *ruleset.Packet) bool {
	return f.Type == nil || int(p.ICMPType) == *f.Type && (f.Code == nil || int(p.ICMPCode) == *f.Code)
}

// side reports whether one end of a packet matches a rule.
func (r *reference) side(
	e *v3.EntityRule, namespace string, protocol uint8, p *ruleset.Packet, a netip.Addr, port uint16, destination bool,
) bool {
	if len(e.Nets) > 0 && !within(a, parseAll(e.Nets)) || within(a, parseAll(e.NotNets)) || otherFamily(e.NotNets, a) {
		return false
	}
	if e.Services != nil {
		return r.serves(e.Services, p.Protocol, a, port, destination)
	}
	if e.NotSelector != "" && !selective(e, namespace) &&
		r.anyPeer(a, func(x *peer) bool { return r.match(e.NotSelector, x.labels) }) {
		return false
	}
	named := func(name string) bool {
		return r.anyPeer(a, func(x *peer) bool {
			return (!selective(e, namespace) || r.selected(e, namespace, x.labels)) &&
				slices.ContainsFunc(x.ports, func(q v3.EndpointPort) bool {
					return q.Name == name && q.Port == port && protocolOf(q.Protocol) == p.Protocol &&
						(protocol == 0 || protocol == p.Protocol)
				})
		})
	}
	for _, q := range e.NotPorts {
		if q.PortName != "" && named(q.PortName) || q.PortName == "" && q.MinPort <= port && port <= q.MaxPort {
			return false
		}
	}
	known := !selective(e, namespace) || r.anyPeer(a, func(x *peer) bool { return r.selected(e, namespace, x.labels) })
	if len(e.Ports) == 0 {
		return known
	}
	for _, q := range e.Ports {
		if q.PortName != "" && named(q.PortName) || q.PortName == "" && known && q.MinPort <= port &&
			port <= q.MaxPort {
			return true
		}
	}
	return false
}

// otherFamily reports whether networks, if there are any, are all of the other family than an address.
func otherFamily(nets []string, a netip.Addr) bool {
	return len(nets) > 0 && !slices.ContainsFunc(parseAll(nets), func(n netip.Prefix) bool {
		return n.Addr().Is4() == a.Is4()
	})
}

// selective reports whether a rule's end is limited to some endpoints and network sets.
func selective(e *v3.EntityRule, namespace string) bool {
	return e.Selector != "" || e.NamespaceSelector != "" || e.ServiceAccounts != nil || namespace != "" &&
		e.NotSelector != ""
}

func (r *reference) selected(e *v3.EntityRule, namespace string, l map[string]string) bool {
	switch {
	case e.NamespaceSelector != "":
		if !r.inScope(e.NamespaceSelector, l) {
			return false
		}
	case namespace != "" && l[model.LabelNamespace] != namespace:
		return false
	}
	if s := e.ServiceAccounts; s != nil {
		if len(s.Names) > 0 && !slices.Contains(s.Names, l[model.LabelServiceAccount]) ||
			!r.match(s.Selector, prefixed("pcsa.", l)) {
			return false
		}
	}
	return r.match(e.Selector, l) && (e.NotSelector == "" || !r.match(e.NotSelector, l))
}

func (r *reference) anyPeer(a netip.Addr, is func(*peer) bool) bool {
	return slices.ContainsFunc(r.peers, func(x *peer) bool { return within(a, x.nets) && is(x) })
}

func within(a netip.Addr, nets []netip.Prefix) bool {
	return slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(a) })
}

func (r *reference) serves(s *v3.ServiceMatch, protocol uint8, a netip.Addr, port uint16, destination bool) bool {
	for o := range r.set.All(model.KindEndpointSlice) {
		slice := o.Value.(*model.EndpointSlice)
		if o.Key.Namespace != s.Namespace || slice.Labels[model.LabelServiceName] != s.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Addresses[0] != a.String() {
				continue
			}
			if !destination || slices.ContainsFunc(slice.Ports, func(q model.SlicePort) bool {
				name := "TCP"
				if q.Protocol != nil {
					name = *q.Protocol
				}
				return int32(port) == *q.Port && protocolOf(numorstring.ProtocolFromString(name)) == protocol
			}) {
				return true
			}
		}
	}
	return false
}

// failsafe reports whether a port stays open. Where connections are not tracked, replies are let through, too.
func (r *reference) failsafe(p *ruleset.Packet, in, replies bool) bool {
	inbound, outbound := defaultIn, defaultOut
	if l := r.felix.FailsafeInboundHostPorts; l != nil {
		inbound = *l
	}
	if l := r.felix.FailsafeOutboundHostPorts; l != nil {
		outbound = *l
	}
	other := p.Source
	if !in {
		inbound, outbound, other = outbound, inbound, p.Destination
	}
	open := func(list []v3.ProtoPort, port uint16) bool {
		return slices.ContainsFunc(list, func(f v3.ProtoPort) bool {
			return protocolOf(numorstring.ProtocolFromString(f.Protocol)) == p.Protocol && f.Port == port &&
				(f.Net == "" || parseNet(f.Net).Contains(other))
		})
	}
	return open(inbound, p.DestinationPort) || replies && open(outbound, p.SourcePort)
}

var (
	defaultIn  = protoPorts("tcp", 22, 179, 2379, 2380, 5473, 6443, 6666, 6667, "udp", 68)
	defaultOut = protoPorts("tcp", 179, 2379, 2380, 5473, 6443, 6666, 6667, "udp", 53, 67)
)

func protoPorts(list ...any) []v3.ProtoPort {
	var out []v3.ProtoPort
	protocol := ""
	for _, x := range list {
		if name, ok := x.(string); ok {
			protocol = name
		} else {
			out = append(out, v3.ProtoPort{Protocol: protocol, Port: uint16(x.(int))})
		}
	}
	return out
}
