package main

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"slices"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"go.uber.org/zap"

	"github.com/manxnet/manx/bgp/bfd"
	"github.com/manxnet/manx/bgp/speaker"
	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/daemon/firewalls"
	"github.com/manxnet/manx/dataplane/hostfirewall"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/model"
)

// firewallsPart reports rules of other programs that drop packets which policy allows.
type firewallsPart struct {
	deps.Deps
	*firewalls.Watch
	sessions     func() []speaker.SessionStatus
	route        func(netip.Addr) string // the interface of the route to an address, empty for none
	besideCalico bool
	rules        *nftables.Conn
	log          *zap.Logger
}

// newFirewalls returns nil for a kernel without nf_tables, which has no such rules.
func newFirewalls(d deps.Deps, sessions func() []speaker.SessionStatus, w ways, besideCalico bool) (
	*firewallsPart, error,
) {
	rules, err := nftables.New()
	switch {
	case errors.Is(err, nftables.ErrMissing):
		return nil, nil
	case err != nil:
		return nil, err
	}
	p := &firewallsPart{Deps: d, sessions: sessions, besideCalico: besideCalico, rules: rules,
		route: w.by, log: d.Log.Named("firewalls")}
	p.Watch = firewalls.New(firewalls.Config{Kernel: rules, InterfaceName: interfaceName, Packets: p.packets,
		Legacy: []string{"/proc/self/net/ip_tables_names", "/proc/self/net/ip6_tables_names"}, Log: p.log})
	d.Control.Policy.ShowFirewalls(p.Watch)
	return p, nil
}

func (p *firewallsPart) Name() string { return "host-firewalls" }

// Close closes the connection to the kernel.
func (p *firewallsPart) Close() { _ = p.rules.Close() }

func interfaceName(index uint32) string {
	i, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return ""
	}
	return i.Name
}

// packets returns the packets that this node forwards, and those of its own that it cannot do without.
func (p *firewallsPart) packets() hostfirewall.Host {
	snapshot := p.Deps.Tables.Snapshot()
	var all hostfirewall.Host
	for _, pool := range model.All[model.IPPool](snapshot, model.KindIPPool) {
		balancer := len(pool.Spec.AllowedUses) > 0 && !slices.ContainsFunc(pool.Spec.AllowedUses,
			func(u v3.IPPoolAllowedUse) bool { return u != v3.IPPoolAllowedUseLoadBalancer })
		if cidr, err := netip.ParsePrefix(pool.Spec.CIDR); err == nil && !balancer {
			all.Pools = append(all.Pools, cidr.Masked())
		}
	}
	for _, w := range model.AllWorkloads(snapshot) {
		if w.Node == p.Node.Name && w.Interface != "" {
			all.Workloads = append(all.Workloads, workloadOf(w))
		}
	}
	if len(all.Workloads) == 0 && !p.besideCalico { // which has rules for each workload
		all.Workloads = p.futureWorkload(all.Pools)
	}
	felix := felixconfig.Merge(snapshot, p.Node.Name, p.Node.Felix)
	marks, _ := policy.MarksOf(&felix)
	all.Marks = marks.Decided | marks.Pass
	ways := firewalls.NewWays(p.uplinkTo)
	p.addUplinks(&all, snapshot, ways)
	p.addTunnels(&all, snapshot, ways)
	return all
}

// uplinkTo is route without the interfaces that lead to no other node by themselves: a Node that has an address
// of this host, and a tunnel.
func (p *firewallsPart) uplinkTo(a netip.Addr) string {
	if name := p.route(a); name != "lo" && !overlay.IsDevice(name) {
		return name
	}
	return ""
}

// addUplinks adds the interfaces to the peers, with the packets of sessions that are down, and those to the other
// nodes. A node without either has the interface of its default route.
func (p *firewallsPart) addUplinks(all *hostfirewall.Host, r model.Reader, ways *firewalls.Ways) {
	add := func(name string) {
		if name != "" && !slices.Contains(all.Uplinks, name) {
			all.Uplinks = append(all.Uplinks, name)
		}
	}
	for _, s := range p.sessions() {
		if s.Session.Workload != "" {
			continue
		}
		if name := p.route(s.Session.Address); name != "" {
			add(name)
			all.Local = append(all.Local, localPackets(s, name)...)
		}
	}
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		for _, a := range p.otherNodes(r, f) {
			add(ways.To(a))
		}
	}
	if len(all.Uplinks) == 0 {
		for _, outside := range []string{"192.0.2.1", "2001:db8::1"} { // of no network (RFC 5737, RFC 3849)
			add(p.route(netip.MustParseAddr(outside)))
		}
	}
}

// otherNodes returns the addresses of the other nodes, with the lengths of their subnets.
func (p *firewallsPart) otherNodes(r model.Reader, f model.Family) (list []netip.Prefix) {
	for key, n := range model.All[model.Node](r, model.KindNode) {
		if a := n.Spec.BGP.Address(f); a.IsValid() && key.Name != p.Node.Name {
			list = append(list, a)
		}
	}
	return list
}

func workloadOf(w *model.Workload) hostfirewall.Workload {
	x := hostfirewall.Workload{Interface: w.Interface}
	for _, p := range w.Networks {
		x.Addresses = append(x.Addresses, p.Addr())
	}
	return x
}

// futureWorkload stands for the first workload of a node that has none.
func (p *firewallsPart) futureWorkload(pools []netip.Prefix) []hostfirewall.Workload {
	prefix := workloadInterfaces(p.Deps.Tables.Snapshot(), p.Node)[0]
	w := hostfirewall.Workload{Interface: prefix + "00000000000"}
	for _, pool := range pools {
		w.Addresses = append(w.Addresses, pool.Addr())
	}
	return []hostfirewall.Workload{w}
}

// localPackets are those of a session that is down, and of its BFD: rules of the host may be the reason.
func localPackets(s speaker.SessionStatus, iface string) (list []hostfirewall.LocalPackets) {
	peer := s.Session.Address
	there := single(peer)
	here := netip.PrefixFrom(peer, 0).Masked()
	in := hostfirewall.Packet{In: hostfirewall.Interface{Name: iface}, Source: there, Destination: here}
	out := hostfirewall.Packet{Out: hostfirewall.Interface{Name: iface}, Source: here, Destination: there}
	add := func(what string, protocol uint8, port uint16) {
		in.Protocol, out.Protocol, in.DestinationPort, out.DestinationPort = protocol, protocol, port, port
		list = append(list, hostfirewall.LocalPackets{What: what + " from " + peer.String(), Packet: in},
			hostfirewall.LocalPackets{What: what + " to " + peer.String(), Packet: out})
	}
	const tcp, udp = 6, 17
	if s.Phase != speaker.PhaseEstablished {
		add("BGP", tcp, s.Session.Port)
	}
	if b := s.BFD; b != nil && b.State != bfd.Up {
		port := uint16(3784)
		if b.Session.Multihop {
			port = 4784
		}
		add("BFD", udp, port)
	}
	return list
}

// addTunnels adds the devices of this node's overlays, and the packets from and to other nodes in them: each by the
// interface to its node, or by the first uplink if that one is not known.
func (p *firewallsPart) addTunnels(all *hostfirewall.Host, r model.Reader, ways *firewalls.Ways) {
	own := model.Get[model.Node](r, model.ResourceKey(model.KindNode, p.Node.Name))
	felix, uplinks := felixconfig.Merge(r, p.Node.Name, p.Node.Felix), all.Uplinks
	for _, o := range overlay.All() {
		if len(uplinks) == 0 || !own.TunnelAddress(o.Device).IsValid() {
			continue
		}
		here, nodes := own.Spec.BGP.Address(o.Family).Addr(), p.otherNodes(r, o.Family)
		if !here.IsValid() || len(nodes) == 0 {
			continue
		}
		packets := o.Packets(&felix)
		for _, a := range nodes {
			if there := a.Addr(); there != here { // which another Node may have, too
				by := cmp.Or(ways.To(a), uplinks[0])
				all.Local = append(all.Local, tunnelPackets(o, packets, by, here, there)...)
			}
		}
		all.Uplinks = append(all.Uplinks, o.Device)
	}
}

// tunnelPackets are those of an overlay between this node's address and another one, by an interface.
func tunnelPackets(o overlay.Overlay, packets overlay.Packets, by string,
	here, there netip.Addr) []hostfirewall.LocalPackets {
	in := hostfirewall.Packet{In: hostfirewall.Interface{Name: by}, Source: single(there), Destination: single(here),
		Protocol: packets.Protocol, DestinationPort: packets.Port}
	if packets.Untracked {
		in.State = hostfirewall.StateUntracked
	}
	out := in
	out.In, out.Out, out.Source, out.Destination = in.Out, in.In, in.Destination, in.Source
	return []hostfirewall.LocalPackets{{What: o.Name + " from other nodes through " + by, Packet: in},
		{What: o.Name + " to other nodes through " + by, Packet: out}}
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
