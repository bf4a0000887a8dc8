package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
)

// World has the objects and rules that an explanation uses.
type World struct {
	Objects model.Reader
	// Rules runs use with the rules of a node.
	Rules func(node string, use func(*policy.Calculator))
	// Local is the node whose rules and routes are read from its daemon; empty if there is none.
	Local string
	// Route returns the local node's route to an address, and the interface; nil without a daemon.
	Route func(netip.Addr) (Route, string)
}

// Computed is a World of objects alone: every node's rules are computed from them. settings are the same for all nodes.
func Computed(r model.Reader, settings policy.Config) World {
	return World{Objects: r, Rules: func(node string, use func(*policy.Calculator)) { use(Build(r, settings, node)) }}
}

// Build computes the rules of a node whose interfaces are not known: they are taken to be those that its HostEndpoints
// name.
func Build(r model.Reader, settings policy.Config, node string) *policy.Calculator {
	settings.Node = node
	return policy.Build(settings, r, interfaces(r, node))
}

// OtherInterface represents one of unknown name.
const OtherInterface = "uplink"

// interfaces returns the interfaces of a node according to HostEndpoints. Its own addresses are on the only one that
// has a name, or on one of unknown name.
func interfaces(r model.Reader, node string) map[string][]netip.Addr {
	links := map[string][]netip.Addr{}
	own := host(r, node).addresses
	var names []string
	for _, h := range model.All[v3.HostEndpoint](r, model.KindHostEndpoint) {
		if name := h.Spec.InterfaceName; h.Spec.Node == node && name != "" && name != model.AllInterfaces {
			links[name] = append(links[name], addresses(h.Spec.ExpectedIPs)...)
			names = append(names, name)
		}
	}
	for _, a := range own {
		known := slices.ContainsFunc(names, func(n string) bool { return slices.Contains(links[n], a) })
		switch {
		case known:
		case len(names) == 1:
			links[names[0]] = append(links[names[0]], a)
		default:
			links[OtherInterface] = append(links[OtherInterface], a)
		}
	}
	if len(links) == 0 {
		links[OtherInterface] = nil
	}
	return links
}

// Question describes the packet to explain.
type Question struct {
	Source, Destination string // addresses or names, see findEnd
	Flow                Flow
	IPv6                bool // if both ends have both families
}

// Explain follows the first packet of a connection. The error is why there is no such packet.
//
// The destination may be a service: then the answer is about one of its endpoints, one that policy denies if there is
// any.
func Explain(w World, q Question) (*Answer, error) {
	if namespace, name, ok := serviceName(q.Destination); ok {
		return explainService(w, q, namespace, name)
	}
	source, err := findEnd(w.Objects, q.Source)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	destination, err := findEnd(w.Objects, q.Destination)
	if err != nil {
		return nil, fmt.Errorf("destination: %w", err)
	}
	if err := sameFamily(&source, &destination, q.IPv6); err != nil {
		return nil, err
	}
	if source.Kind == kindOutside && destination.Kind == kindOutside {
		return nil, fmt.Errorf("neither %s nor %s is an address of a workload or node: want one of this cluster",
			source.Address, destination.Address)
	}
	e := explanation{world: w, answer: &Answer{Source: source, Destination: destination,
		Flow: q.Flow.of(source.Address), Allowed: true}}
	_, notAnAddress := netip.ParseAddr(q.Source)
	e.byAddress = notAnAddress == nil
	e.follow()
	return e.answer, nil
}

// explanation is an answer in the making.
type explanation struct {
	world     World
	answer    *Answer
	byAddress bool // the source was given as an address
	packet    ruleset.Packet
}

func (e *explanation) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(e.answer.Notes, text) {
		e.answer.Notes = append(e.answer.Notes, text)
	}
}

// follow shows the packet to the nodes that it comes to.
func (e *explanation) follow() {
	a := e.answer
	e.packet = ruleset.Packet{Source: a.Source.Address, Destination: a.Destination.Address, Protocol: a.Flow.Protocol,
		SourcePort: a.Flow.SourcePort, DestinationPort: a.Flow.Port, ICMPType: a.Flow.ICMPType,
		ICMPCode: a.Flow.ICMPCode, HopLimit: hopLimit(a.Flow)}
	if _, known := protocolNames[a.Flow.Protocol]; !known {
		e.note("%[1]d is the number of an IP protocol; port %[1]d is tcp/%[1]d or udp/%[1]d", a.Flow.Protocol)
	}
	if hasPorts(a.Flow.Protocol) && a.Flow.Port == 0 {
		e.note("no port was given: rules about ports do not match; use %s/PORT",
			ProtocolName(a.Flow.Protocol))
	}
	from, to := a.Source.Node, a.Destination.Node
	e.leaveByTunnel()
	e.noteEncryption()
	local := from == to || a.Source.Kind == kindOutside || a.Destination.Kind == kindOutside
	if a.Source.Kind != kindOutside {
		e.hop(from, local)
	}
	if a.Destination.Kind != kindOutside && (!local || a.Source.Kind == kindOutside) {
		e.hop(to, true)
	}
	e.conclude()
}

// hopLimit is the one with which a host sends such a packet: routers do not pass on neighbour discovery and MLD.
func hopLimit(f Flow) uint8 {
	switch {
	case f.Protocol != protoICMPv6:
	case f.ICMPType >= 130 && f.ICMPType <= 132, f.ICMPType == 143:
		return 1
	case f.ICMPType >= 133 && f.ICMPType <= 137:
		return 255
	}
	return 64
}

// hop evaluates the packet with the rules of one node; last reports whether the destination is there, or the rest of
// the way is outside of the cluster.
func (e *explanation) hop(node string, last bool) {
	a := e.answer
	toHost := a.Destination.Node == node && a.Destination.Kind == kindHost
	reached := a.Allowed
	e.world.Rules(node, func(c *policy.Calculator) {
		in, out := e.interfacesAt(node, last, c)
		a.Hops = append(a.Hops, Hop{Node: node, Source: e.packet.Source, Destination: e.packet.Destination, In: in,
			Out: out})
		h := e.host(node, c)
		p := e.packet
		p.In, p.Out, p.Mark, p.State, p.Status = in, out, 0, ruleset.ConnNew, 0
		if vxlan, is := c.AsVXLAN(p); is {
			p = vxlan
			e.note("a datagram to port %d is taken for one of the nodes' VXLAN, with VNI %d: rules about VXLAN "+
				"between nodes match no other network", p.DestinationPort, p.VNI)
		}
		evaluate := c.Table().EvalForward
		switch {
		case in == "" && toHost:
			e.note("a node that talks to itself does so over lo, which no policy is about")
			return
		case in == "":
			evaluate = c.Table().EvalOutput
		case toHost:
			evaluate = c.Table().EvalInput
		}
		var trace ruleset.Trace
		result := evaluate(h, p, &trace)
		read := reader{node: node, answer: a, calc: c, packet: p, programmed: node == e.world.Local}
		stages := read.stages(&trace)
		if !result.Accepted() && c.IsWorkload(in) && c.IsWorkload(out) && !toHost {
			stages = append(stages, e.unreached(read, h, stages)...)
		}
		for _, s := range stages {
			s.Reached = s.Reached && reached
			a.Stages = append(a.Stages, s)
		}
		if !result.Accepted() {
			a.Allowed = false
			if result.By != nil && result.By.Origin == (policy.Unserved{}) {
				e.note("%s is an address of services: kube-proxy translates those before policy sees them; ask about "+
					"a pod behind the service", a.Destination.Address)
			}
			return
		}
		if d := result.Packet.DSCP; d.Set {
			e.note("node %s sets the DSCP of the packet to %d", node, d.Value)
		}
		if s := result.Packet.Source; s != p.Source {
			e.note("the source becomes %s when it leaves node %s (%s)", s, node, "natOutgoing or a tunnel's address")
			e.packet.Source = s
		}
	})
	e.route(node)
}

// interfacesAt returns the interfaces through which the packet comes to a node and leaves it; empty if it does not.
func (e *explanation) interfacesAt(node string, last bool, c *policy.Calculator) (in, out string) {
	from, to := e.answer.Source, e.answer.Destination
	switch {
	case from.Kind == kindOutside:
		in = e.towards(node, from.Address, c)
	case from.Node != node:
		if in = e.tunnel(from.Node, to); in == "" {
			in = e.towards(node, e.nodeAddress(from.Node, from.Address), c)
		}
	case from.isWorkload():
		in = from.Interface
	}
	switch {
	case to.Kind == kindOutside:
		out = e.towards(node, to.Address, c)
	case to.Node != node:
		if out = e.tunnel(node, to); out == "" {
			out = e.towards(node, e.nodeAddress(to.Node, to.Address), c)
		}
	case last && to.isWorkload():
		out = to.Interface
	}
	return in, out
}

// unreached returns the decision of the other end on the same node about a packet that the first one drops.
func (e *explanation) unreached(read reader, h *ruleset.Host, have []Stage) []Stage {
	p := read.packet
	p.In = "" // of no workload
	var trace ruleset.Trace
	read.calc.Table().Eval(h, ruleset.Forward, p, &trace)
	var more []Stage
	for _, s := range read.stages(&trace) {
		if !slices.ContainsFunc(have, func(x Stage) bool { return x.Base == s.Base }) {
			s.Reached = false
			more = append(more, s)
		}
	}
	return more
}

// host has the data about a node that rules may refer to.
func (e *explanation) host(node string, c *policy.Calculator) *ruleset.Host {
	var own []netip.Addr
	if n := model.Get[model.Node](e.world.Objects, model.ResourceKey(model.KindNode, node)); n != nil {
		own = nodeAddresses(n)
	}
	owns := func(iface string, a netip.Addr) bool { return slices.Contains(c.Interfaces()[iface], a) }
	return &ruleset.Host{
		IsLocal: func(a netip.Addr) bool {
			if slices.Contains(own, a) {
				return true
			}
			for name := range c.Interfaces() {
				if owns(name, a) {
					return true
				}
			}
			return false
		},
		ReturnInterface: func(a netip.Addr) string {
			if a == e.answer.Source.Address && e.answer.Source.Node == node && e.answer.Source.isWorkload() {
				return e.answer.Source.Interface
			}
			if node == e.world.Local && e.world.Route != nil {
				if _, iface := e.world.Route(a); iface != "" {
					return iface
				}
			}
			return OtherInterface
		},
		OwnsAddress: owns,
		SourceFor: func(iface string, instead netip.Addr) netip.Addr {
			candidates := append(slices.Clone(c.Interfaces()[iface]), e.tunnelAddress(node, iface))
			for _, a := range append(candidates, own...) {
				if a.IsValid() && a.Is4() == instead.Is4() && !a.IsLinkLocalUnicast() {
					return a
				}
			}
			return instead
		},
	}
}

// conclude names who decided.
func (e *explanation) conclude() {
	a := e.answer
	var allowed []string
	for _, s := range a.Stages {
		switch {
		case !s.Allowed:
			a.Allowed = false
			a.By = fmt.Sprintf("%s, %s of %s at node %s", s.By, s.Direction, s.About, s.Node)
			return
		case s.By != "":
			allowed = append(allowed, fmt.Sprintf("%s (%s of %s)", s.By, s.Direction, s.About))
		}
	}
	a.By = strings.Join(allowed, " and ")
}
