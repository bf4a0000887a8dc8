package explain

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// route adds the way of the packet from a node on.
func (e *explanation) route(node string) {
	a := e.answer
	if a.Destination.Node == node && a.Destination.Kind == kindHost {
		a.Routes = append(a.Routes, Route{Node: node, Prefix: prefixOf(a.Destination.Address), Next: "the node itself"})
		return
	}
	if node == e.world.Local && e.world.Route != nil && !e.encrypted(node, a.Destination) {
		if r, _ := e.world.Route(a.Destination.Address); r.Next != "" {
			r.Node = node
			a.Routes = append(a.Routes, r)
			return
		}
	}
	r := Route{Node: node}
	switch {
	case a.Destination.Node == node:
		r.Prefix, r.Next = prefixOf(a.Destination.Address), "dev "+a.Destination.Interface
	case a.Destination.isWorkload():
		r.Prefix, r.Note = e.block(a.Destination)
		r.Next = e.nextHop(node)
	case e.encrypted(node, a.Destination):
		r.Prefix, r.Next = prefixOf(a.Destination.Address), e.nextHop(node)
	default:
		r.Prefix, r.Next = prefixOf(a.Destination.Address), "the node's other routes"
	}
	a.Routes = append(a.Routes, r)
}

// nextHop is the way from a node to that of the destination: by VXLAN the gateway is the address of its tunnel.
func (e *explanation) nextHop(node string) string {
	d := e.answer.Destination
	if e.encrypted(node, d) {
		return "dev " + e.tunnel(node, d)
	}
	next, way := e.nodeAddress(d.Node, d.Address), e.reach(node, d)
	if way.Encapsulation == ippool.VXLAN {
		outer := next
		if next = e.tunnelAddress(d.Node, way.Device()); !next.IsValid() {
			e.note("node %s has published no address of %s: other nodes have no routes to its workloads yet", d.Node,
				way.Device())
		} else {
			e.note("node %s sends it by VXLAN to node %s (%s)", node, d.Node, outer)
		}
	}
	text := "via node " + d.Node
	if next.IsValid() {
		text = "via " + next.String()
	}
	if device := way.Device(); device != "" {
		text += " dev " + device
	}
	return text
}

func prefixOf(a netip.Addr) string { return netip.PrefixFrom(a, a.BitLen()).String() }

// block returns the block of an address; if another node has that block, the address has a route of its own.
func (e *explanation) block(d End) (prefix, note string) {
	for k, v := range model.All[model.BlockAffinity](e.world.Objects, model.KindBlockAffinity) {
		b, ok := ownership.BlockOf(k, v)
		if !ok || !b.CIDR.Contains(d.Address) {
			continue
		}
		if b.Node == d.Node {
			return b.CIDR.String(), "block of node " + d.Node
		}
		return prefixOf(d.Address), "borrowed from block " + b.CIDR.String() + " of node " + b.Node
	}
	return prefixOf(d.Address), "no block is known that it is in"
}

func (e *explanation) nodeAddress(node string, same netip.Addr) netip.Addr {
	for _, a := range host(e.world.Objects, node).addresses {
		if a.Is4() == same.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// tunnel is the interface of the tunnel between a node and the node of a workload; empty for none.
func (e *explanation) tunnel(node string, d End) string {
	if e.encrypted(node, d) {
		return deviceOf[familyOf(d.Address)]
	}
	return e.reach(node, d).Device()
}

// deviceOf has the devices of WireGuard.
var deviceOf = map[model.Family]string{model.IPv4: model.DeviceWireguard, model.IPv6: model.DeviceWireguardV6}

// encrypted reports whether packets from a node to another one, or to a workload there, are encrypted: both publish a
// key, and the sender encrypts packets to nodes themselves.
func (e *explanation) encrypted(node string, d End) bool {
	return e.tunnelled(node, d) && d.Node != node && e.publishes(node, d) && e.publishes(d.Node, d)
}

// tunnelled reports whether an end is one to which a node would encrypt packets: a workload, or the address of a node
// that others know it by.
func (e *explanation) tunnelled(node string, d End) bool {
	if d.Kind != kindHost {
		return d.isWorkload()
	}
	f := e.answer.Flow
	if e.answer.Source.Kind == kindHost && f.Protocol == protoTCP && slices.ContainsFunc(overlay.PlainPorts(),
		func(p overlay.Ports) bool { return p.First <= f.Port && f.Port <= p.Last }) {
		return false
	}
	felix := felixconfig.Merge(e.world.Objects, node, nil)
	to := model.Get[model.Node](e.world.Objects, model.ResourceKey(model.KindNode, d.Node))
	return is(felix.WireguardHostEncryptionEnabled) && to.HostAddress(familyOf(d.Address)) == d.Address
}

func is(b *bool) bool { return b != nil && *b }

func (e *explanation) publishes(node string, d End) bool {
	n := model.Get[model.Node](e.world.Objects, model.ResourceKey(model.KindNode, node))
	return n.PublicKey(familyOf(d.Address)) != ""
}

// noteEncryption says whether the packet is encrypted between two nodes, if one of them encrypts at all.
func (e *explanation) noteEncryption() {
	from, to := e.answer.Source, e.answer.Destination
	if from.Kind == kindOutside || to.Kind == kindOutside || !e.tunnelled(from.Node, to) || from.Node == to.Node {
		return
	}
	switch a, b := e.publishes(from.Node, to), e.publishes(to.Node, to); {
	case a && b:
		e.note("WireGuard encrypts it between the nodes %s and %s, which both publish a key", from.Node, to.Node)
	case a:
		e.note("it is not encrypted between the nodes: %s publishes no key for WireGuard", to.Node)
	case b:
		e.note("it is not encrypted between the nodes: %s publishes no key for WireGuard", from.Node)
	}
}

// reach is the encapsulation between a node and the node of a workload.
func (e *explanation) reach(node string, d End) ippool.Reach {
	if !d.isWorkload() || d.Node == node {
		return ippool.Reach{}
	}
	var own netip.Prefix
	if n := model.Get[model.Node](e.world.Objects, model.ResourceKey(model.KindNode, node)); n != nil {
		own = n.Spec.BGP.Address(familyOf(d.Address))
	}
	pool := ippool.Read(e.world.Objects).OfAddress(d.Address)
	return pool.Reach(own, e.nodeAddress(d.Node, d.Address))
}

func familyOf(a netip.Addr) model.Family {
	if a.Is4() {
		return model.IPv4
	}
	return model.IPv6
}

// towards is the interface of a node that leads to an address elsewhere: by its route, else the one that has the node's
// address.
func (e *explanation) towards(node string, far netip.Addr, c *policy.Calculator) string {
	if node == e.world.Local && e.world.Route != nil && far.IsValid() {
		if _, iface := e.world.Route(far); iface != "" {
			return iface
		}
	}
	own := e.nodeAddress(node, e.answer.Source.Address)
	var names []string
	for name, list := range c.Interfaces() {
		if own.IsValid() && slices.Contains(list, own) && !overlay.IsDevice(name) {
			return name
		}
		if name != "lo" && !c.IsWorkload(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return OtherInterface
	}
	slices.Sort(names)
	if names[0] != OtherInterface {
		e.note("packets from elsewhere are taken to come to node %s, and to leave it, through %s", node, names[0])
	}
	return names[0]
}

// tunnelAddress is the address that a node has in a tunnel.
func (e *explanation) tunnelAddress(node, device string) netip.Addr {
	return model.Get[model.Node](e.world.Objects, model.ResourceKey(model.KindNode, node)).TunnelAddress(device)
}

// leaveByTunnel: packets that a node itself sends into a tunnel have the node's address there, unless the query gave an
// address.
func (e *explanation) leaveByTunnel() {
	s := &e.answer.Source
	if s.Kind != kindHost || e.byAddress || !e.answer.Destination.isWorkload() {
		return
	}
	device := e.tunnel(s.Node, e.answer.Destination)
	if a := e.tunnelAddress(s.Node, device); a.IsValid() {
		e.note("node %s sends into the tunnel %s from its address there, %s", s.Node, device, a)
		s.Address, e.packet.Source = a, a
	}
}
