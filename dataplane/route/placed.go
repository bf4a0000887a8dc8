package route

import (
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/overlay"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
)

// byIPAM reports whether routes to the addresses of a pool follow from IPAM's blocks. Those of VXLAN do, as in Calico:
// they need no BGP, and a route reflector may have another next hop than the node.
func byIPAM(pool *ippool.Pool) bool { return pool.Encapsulation() == ippool.VXLAN }

// Place is a prefix with the node that has it, by IPAM's blocks; without a Node it is on none any more.
type Place struct {
	Prefix netip.Prefix
	Node   string
}

// Place takes over on which nodes prefixes are, by IPAM's blocks.
func (t *Target) Place(changes []Place) {
	for _, c := range changes {
		t.putPlaced(c.Prefix, c.Node)
		t.setPlaced(c.Prefix, remoteOf, c.Node)
		if _, held := t.held[inMain(c.Prefix)]; held { // by placed alone: see holdPlaced
			t.decideAgain(c.Prefix)
		}
	}
}

func (t *Target) putPlaced(p netip.Prefix, node string) {
	if old := t.placed[p]; old != "" && old != node {
		if delete(t.placedOn[old], p); len(t.placedOn[old]) == 0 {
			delete(t.placedOn, old)
		}
	}
	if node == "" {
		delete(t.placed, p)
		return
	}
	if t.placed[p] = node; t.placedOn[node] == nil {
		t.placedOn[node] = map[netip.Prefix]bool{}
	}
	t.placedOn[node][p] = true
}

// SetPlacesSynced sets whether all blocks have been read.
func (t *Target) SetPlacesSynced(yes bool) {
	if yes && !t.placesSynced { // routes that were held until then
		t.decideLearnedAgain(func(p netip.Prefix, _ uint32) bool { return byIPAM(t.rules.config.Pools.Of(p)) })
	}
	t.placesSynced = yes
	t.updatePrune()
}

// setPlaced sets the node of a prefix; empty: it has none. The own node needs no route to itself, and in pools without
// VXLAN others decide.
func (t *Target) setPlaced(p netip.Prefix, field func(*extras) *string, node string) {
	if node == t.rules.node || !byIPAM(t.rules.config.Pools.Of(p)) {
		node = ""
	}
	n := t.table.rows.findPlace(inMain(p))
	if n == 0 && node == "" || n != 0 && *field(t.extrasAtRow(n)) == node {
		return
	}
	if n == 0 {
		n = t.table.rows.putPlace(inMain(p))
	}
	*field(t.extrasOf(n)) = node
	t.decideRowAgain(n)
}

// extrasAtRow returns the extras of a row, which must not be changed.
func (t *Target) extrasAtRow(n uint32) *extras {
	if t.table.row(n).is(rowExtras) {
		return t.extras[n]
	}
	return noExtras
}

// followVTEPs takes over the tunnel endpoints of nodes; nil: of all.
func (t *Target) followVTEPs(nodes []string) {
	if nodes == nil {
		t.followAllVTEPs()
		return
	}
	for _, node := range nodes {
		for _, family := range []model.Family{model.IPv4, model.IPv6} {
			k := endpointKey{node, family}
			was := t.endpoints[k]
			delete(t.endpoints, k)
			if now := t.endpointOf(k); !now.equal(was) {
				t.followVTEP(node, was, now)
				if was.address != now.address {
					t.changedNodes[k] = true
				}
				if !now.address.IsValid() { // the node is gone, or has none
					delete(t.endpoints, k)
				}
			} else {
				t.endpoints[k] = was
			}
		}
	}
}

// followVTEP decides again about the routes to a node, and about those that its addresses forbid to others.
func (t *Target) followVTEP(node string, was, now endpoint) {
	if was.vtep.Tunnel != now.vtep.Tunnel {
		t.setTunnel(was.vtep.Tunnel, "")
		t.setTunnel(now.vtep.Tunnel, node)
	}
	for p := range t.placedOn[node] {
		t.setPlaced(p, remoteOf, node)
		t.decideAgain(p)
	}
	for _, a := range []netip.Addr{was.address, was.vtep.Tunnel, now.address, now.vtep.Tunnel} {
		t.rules.refreshVTEP(a)
		for bits := a.BitLen(); bits > 0; bits-- { // see refuseToPlace
			p, _ := a.Prefix(bits)
			t.decideAgain(p)
		}
	}
}

// setTunnel sets the node of a tunnel address that has a route of its own: the kernel refuses a gateway that another
// device's route covers, and the tunnel address of a node is usually in one of its blocks. IPv4 has no such check.
func (t *Target) setTunnel(a netip.Addr, node string) {
	if !a.Is6() {
		return
	}
	p := netip.PrefixFrom(a, a.BitLen())
	if t.setPlaced(p, tunnelOf, node); node == "" {
		delete(t.tunnels, p)
	} else {
		t.tunnels[p] = node
	}
}

func (t *Target) followAllVTEPs() {
	tunnels := map[netip.Prefix]bool{}
	for v := range t.rules.vteps(model.IPv6).All() {
		tunnels[netip.PrefixFrom(v.Tunnel, v.Tunnel.BitLen())] = true
		t.setTunnel(v.Tunnel, v.Node)
	}
	for p := range t.tunnels {
		if !tunnels[p] {
			t.setTunnel(p.Addr(), "")
		}
	}
	was := t.endpoints
	t.endpoints = map[endpointKey]endpoint{}
	for _, family := range []model.Family{model.IPv4, model.IPv6} {
		for node := range t.rules.vteps(family).Nodes() {
			k := endpointKey{node, family}
			if now := t.endpointOf(k); now.equal(was[k]) {
				t.endpoints[k] = was[k]
			}
		}
	}
	t.decidePlacedAgain(func(netip.Prefix, string) bool { return true })
	t.changedLinks, t.changedUnderlay = true, true // gateways, and nodes
}

// endpoint is the state of a node's tunnel endpoint, from which its routes were decided.
type endpoint struct {
	address netip.Addr
	vtep    vtep.VTEP
	err     string
	since   time.Time
}

func (e endpoint) equal(o endpoint) bool {
	return e.address == o.address && e.vtep == o.vtep && e.err == o.err
}

// endpointOf returns the endpoint of a node, which is new if it was not needed before.
func (t *Target) endpointOf(k endpointKey) endpoint {
	e, known := t.endpoints[k]
	if !known {
		table := t.rules.vteps(k.family)
		v, err := table.Of(k.node)
		e = endpoint{table.Address(k.node), v, fmt.Sprint(err), t.now()}
		t.endpoints[k] = e
	}
	return e
}

type endpointKey struct {
	node   string
	family model.Family
}

func remoteOf(x *extras) *string { return &x.remote }
func tunnelOf(x *extras) *string { return &x.tunnel }

// decidePlacedAgain marks placed prefixes for a new decision: those for which selects is true.
func (t *Target) decidePlacedAgain(selects func(p netip.Prefix, node string) bool) {
	again := func(list map[netip.Prefix]string, field func(*extras) *string) {
		for p, node := range list {
			if selects(p, node) {
				t.setPlaced(p, field, node)
				t.decideAgain(p)
			}
		}
	}
	again(t.tunnels, tunnelOf)
	again(t.placed, remoteOf)
}

// placed is the decision about a prefix of a pool that another node has. Without a route, waits reports that there may
// be one once the node has published more, or a device is there.
func (r *rules) placed(pool *ippool.Pool, p netip.Prefix, node string) (route *kernel.Route, note string, waits bool) {
	family := familyOf(p)
	table := r.vteps(family)
	address := table.Address(node)
	switch {
	case !address.IsValid():
		_, err := table.Of(node)
		return nil, err.Error(), true
	case r.own.Has(address):
		r.reach(address, directly) // to notice when it is the host's no more
		return nil, fmt.Sprintf("node %s has the address %s, which is this host's", node, address), false
	}
	if why := r.refuseToPlace(p, node, noServer); why != "" {
		return nil, why, false
	}
	route = &kernel.Route{Dst: p, Metric: staticMetric4, Protocol: kernel.ProtocolCalico, Type: kernel.Unicast}
	if family == model.IPv6 {
		route.Metric = staticMetric6
	}
	device := pool.Reach(r.config.node(address), address).Device()
	if device == directly {
		w := r.reach(address, directly)
		route.NextHops, route.MTU = w.hops, w.mtu
		if len(w.hops) == 0 {
			return nil, w.reason, true
		}
		return route, w.reason, false
	}
	v, err := table.Of(node)
	if err != nil {
		return nil, err.Error(), true
	}
	w := r.reach(address, device)
	switch {
	case p.Contains(address):
		return nil, fmt.Sprintf("node %s has the address %s, which is in %s itself: the tunnel would lead through "+
			"itself", node, address, p), false
	case len(w.hops) == 0:
		return nil, w.missing(pool), r.missing[device] == nil
	}
	route.Protocol, route.NextHops, route.MTU = r.config.workloadProtocol(), w.hops, w.mtu
	if p.Addr() == v.Tunnel && p.IsSingleIP() { // it is on the link
		route.NextHops = []kernel.NextHop{{Link: w.hops[0].Link}}
		if family == model.IPv4 {
			route.Scope = kernel.ScopeLink
		}
	}
	return route, "", false
}

// refuseToPlace returns why a prefix is never routed to another node, whoever wrote that the node has it; empty if it
// may be. A server for which spared returns true is no reason. See reserved for the addresses of local workloads.
func (r *rules) refuseToPlace(p netip.Prefix, node string, spared func(netip.Addr) bool) string {
	if why := r.ownership.Refuse(p); why != "" {
		return why
	}
	for hop := range r.rib.gateways {
		if p.Contains(hop.Gateway) && !r.isWorkload(hop.Link) {
			return fmt.Sprintf("%s is a gateway of this host", hop.Gateway)
		}
	}
	for a, server := range r.servers {
		if p.Contains(a) && !spared(a) {
			return fmt.Sprintf("%s is the address of %s", a, server)
		}
	}
	if !p.IsSingleIP() {
		if other, a := r.vteps(familyOf(p)).Within(p, node); other != "" {
			return fmt.Sprintf("%s is the address of node %s, and packets to it do not go to node %s", a, other, node)
		}
		return ""
	}
	if v, err := r.vteps(familyOf(p)).At(p.Addr()); err == nil && v.Node != node {
		return fmt.Sprintf("%s is the address of node %s", p.Addr(), v.Node)
	}
	return ""
}

func isSingle(p netip.Prefix, _ string) bool { return p.IsSingleIP() }

// RefuseToPlace returns why no packet to a prefix goes to another node, whoever wrote that the node has it; empty if it
// may. That is so for what this host itself needs, such as its gateways.
func (t *Target) RefuseToPlace(p netip.Prefix, node string) string {
	return t.rules.refuseToPlace(p, node, noServer)
}

// RefuseHost is RefuseToPlace for the own address of a node. Servers for which spared returns true are no reason.
func (t *Target) RefuseHost(p netip.Prefix, node string, spared func(netip.Addr) bool) string {
	return t.rules.refuseToPlace(p, node, spared)
}

func noServer(netip.Addr) bool { return false }

// FollowRefusals sets a function that is called when RefuseToPlace may differ because gateways or servers of this host
// do. Call it before the first Flush.
func (t *Target) FollowRefusals(changed func()) { t.refusalsChanged = changed }

// followGateways decides again about placed prefixes with gateways of the host that came or went.
func (t *Target) followGateways() {
	fresh := map[netip.Addr]bool{}
	for hop := range t.rules.rib.gateways {
		if !t.rules.isWorkload(hop.Link) {
			fresh[hop.Gateway] = true
		}
	}
	was := t.gateways
	if t.gateways = fresh; maps.Equal(was, fresh) {
		return
	}
	t.refusalsChanged()
	t.decidePlacedAgain(func(p netip.Prefix, _ string) bool {
		for _, set := range []map[netip.Addr]bool{was, fresh} {
			for a := range set {
				if was[a] != fresh[a] && p.Contains(a) {
					return true
				}
			}
		}
		return false
	})
}

func familyOf(p netip.Prefix) model.Family {
	if p.Addr().Is4() {
		return model.IPv4
	}
	return model.IPv6
}

// gatewayOn returns the gateway of routes through a tunnel device to the node with an address, or why there is none.
func (r *rules) gatewayOn(device string, node netip.Addr) (netip.Addr, error) {
	if !overlay.HasVTEPs(device) {
		return node, nil
	}
	family := model.IPv4
	if node.Is6() {
		family = model.IPv6
	}
	v, err := r.vteps(family).At(node)
	if err == nil && r.own.Has(v.Tunnel) {
		err = fmt.Errorf("node %s has published %s, which is this host's, as its tunnel address", v.Node, v.Tunnel)
	}
	return v.Tunnel, err
}
