package route

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/livemigration"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// rules is everything that the route of a prefix depends on, beside the prefix' own state. Deciding only reads it.
type rules struct {
	config Config
	*underlay
	ownership      ownership.Set               // with the addresses of the underlay
	formerPrefixes []string                    // as WorkloadPrefixes, of configurations before
	workloadAt     func(netip.Addr) string     // the interface of a local workload
	gatewayTo      func(netip.Addr) netip.Addr // the gateway of the static route to a peer
	missing        map[string]error            // why the node does not have a tunnel device
	formerTables   []kernel.Table              // as Tables, of configurations before
	hops           map[netip.Addr]*hop
	servers        map[netip.Addr]string // see SetServers
	moves          Moves
	node           string                         // this one
	vteps          func(model.Family) *vtep.Table // of the cluster's nodes
	peers          []netip.Addr                   // of BGP
	newcomers      map[int]time.Time              // interfaces, until their grace ends: see isExternal
	nearby         nearby
	paths          map[netip.Addr]int // see SetPaths
}

func (r *rules) setUnderlay(u *underlay) { r.underlay, r.ownership.Addresses = u, u.own }

// state is the input of the rules for one prefix in one table.
type state struct {
	learned []netip.Addr // BGP's next hops; none: not learned
	metric  uint32       // of the learned route
	block   bool
	*extras // never nil: noExtras is shared by all that have none of it
}

// extras are the data that few prefixes have.
type extras struct {
	endpoints []*Endpoint   // the first one counts
	static    *Static       // the route to a peer; nil for none, without a gateway if it is gone
	remote    string        // the other node that has the prefix, by IPAM's blocks
	tunnel    string        // the other node whose tunnel address it is
	served    *kernel.Route // the last route to a local workload with the address, until it departs
	fresh     bool          // nothing led to the address, and its connections are forgotten
	note      string        // why there is no route, or a remark about it
	since     time.Time     // of note
}

var noExtras = &extras{}

// via is the gateway to the peer that has the address, invalid if there is none.
func (x *extras) via() netip.Addr {
	if x.static == nil {
		return netip.Addr{}
	}
	return x.static.Via
}

// none reports whether there are no extras.
func (x *extras) none() bool {
	return len(x.endpoints) == 0 && x.static == nil && x.remote == "" && x.tunnel == "" && x.served == nil &&
		!x.fresh && x.note == ""
}

// source returns where the route of a prefix comes from. The address of a workload that leaves is routed to the node
// that has it, as soon as that node announces it before ordinary routes.
func (r *rules) source(p netip.Prefix, s *state) Source {
	switch {
	case len(s.endpoints) > 0 && r.phase(s.endpoints) == livemigration.Leaving && len(s.learned) > 0 &&
		s.metric < r.config.workloadMetric(p.Addr()):
		return SourceBGP
	case len(s.endpoints) > 0 && s.remote != "" && r.phase(s.endpoints) == livemigration.Leaving:
		return SourceIPAM
	case len(s.endpoints) > 0:
		return SourceWorkload
	case s.block:
		return SourceBlock
	case s.via().IsValid():
		return SourceStatic
	case s.remote != "" || s.tunnel != "":
		return SourceIPAM
	case len(s.learned) > 0:
		return SourceBGP
	}
	return SourceNone
}

// decide returns the route for a prefix. Without a route, note is the reason; with a route, it may name omitted parts.
//
// Next hops that cannot be resolved give no route rather than an "unreachable" one: a less specific route, such as the
// default route to a switch that knows the way, then still carries the traffic.
func (r *rules) decide(p netip.Prefix, s *state) (route *kernel.Route, note string) {
	switch r.source(p, s) {
	case SourceWorkload:
		return r.workload(p, s)
	case SourceBlock:
		return r.blackhole(p), ""
	case SourceStatic:
		return r.static(p, s.static)
	case SourceIPAM:
		route, note, _ = r.placed(r.config.Pools.Of(p), p, cmp.Or(s.tunnel, s.remote))
		return route, note
	case SourceBGP:
		return r.learned(p, s)
	}
	return nil, ""
}

func (r *rules) static(p netip.Prefix, s *Static) (*kernel.Route, string) {
	if !r.ownTable(s.Table) {
		return nil, fmt.Sprintf("table %s is not one of this node's", s.Table)
	}
	direct := r.reach(s.Via, directly)
	hops := slices.DeleteFunc(slices.Clone(direct.hops), func(n kernel.NextHop) bool { return n.Gateway != s.Via })
	switch {
	case len(direct.hops) == 0:
		return nil, fmt.Sprintf("gateway %s (reachableBy) cannot be used: %s", s.Via, direct.reason)
	case len(hops) == 0:
		return nil, fmt.Sprintf("gateway %s (reachableBy) is on no link of this node: it is itself behind %s",
			s.Via, direct.hops[0].Gateway)
	}
	route := &kernel.Route{Dst: p, Metric: staticMetric4, Table: s.Table,
		Protocol: kernel.ProtocolBIRD, Type: kernel.Unicast, NextHops: hops}
	if p.Addr().Is6() {
		route.Metric = staticMetric6
	}
	return route, ""
}

func (r *rules) workload(p netip.Prefix, s *state) (*kernel.Route, string) {
	e := r.holder(s.endpoints)
	if r.config.LeaveWorkloads {
		return nil, "routes to workloads are left to other programs (routeSyncDisabled of FelixConfiguration)"
	}
	phase := r.moves[e.Name]
	if phase == livemigration.Arriving {
		return nil, fmt.Sprintf("WorkloadEndpoint %s is a virtual machine that moves here, and does not run here yet",
			e.Name)
	}
	if why := r.reserved(p.Addr()); why != "" {
		return nil, fmt.Sprintf("WorkloadEndpoint %s claims %s: %s", e.Name, p.Addr(), why)
	}
	l, ok := r.link(e.Interface)
	if !ok {
		return nil, fmt.Sprintf("interface %s does not exist (yet)", e.Interface)
	}
	if !l.Up {
		return nil, fmt.Sprintf("interface %s is down", e.Interface)
	}
	route := &kernel.Route{
		Dst: p, Metric: r.config.workloadMetric(p.Addr()), Protocol: r.config.workloadProtocol(), Type: kernel.Unicast,
		NextHops: []kernel.NextHop{{Link: l.Index}},
	}
	if phase == livemigration.Arrived {
		route.Metric = r.config.elevatedMetric(p.Addr())
	}
	if source := r.config.workloadSource(p.Addr()); r.own.Has(source) {
		route.Src = source // the kernel refuses another host's
	}
	if p.Addr().Is4() {
		route.Scope = kernel.ScopeLink
	}
	if len(s.endpoints) > 1 {
		other := s.endpoints[0]
		if other == e {
			other = s.endpoints[1]
		}
		return route, fmt.Sprintf("WorkloadEndpoints %s and %s both claim the address; the first one has it", e.Name,
			other.Name)
	}
	return route, ""
}

// phase is that of the workload that has an address.
func (r *rules) phase(claims []*Endpoint) livemigration.Phase {
	if len(r.moves) == 0 {
		return livemigration.None
	}
	return r.moves[r.holder(claims).Name]
}

// holder returns the claimant that has an address: the first one that really exists. A claim alone, such as that in the
// annotation of a pod that never started, takes nothing from a workload that works.
func (r *rules) holder(claims []*Endpoint) *Endpoint {
	for _, e := range claims {
		if l, ok := r.link(e.Interface); ok && l.Up {
			return e
		}
	}
	return claims[0]
}

func (c *Config) workloadMetric(a netip.Addr) uint32 {
	if a.Is4() {
		return cmp.Or(c.WorkloadMetric4, defaultWorkloadMetric)
	}
	return cmp.Or(c.WorkloadMetric6, defaultWorkloadMetric)
}

// elevatedMetric is the metric of the route to a workload that has just moved here.
func (c *Config) elevatedMetric(a netip.Addr) uint32 {
	if a.Is4() {
		return cmp.Or(c.ElevatedMetric4, defaultElevatedMetric)
	}
	return cmp.Or(c.ElevatedMetric6, defaultElevatedMetric)
}

func (c *Config) workloadSource(a netip.Addr) netip.Addr {
	if a.Is4() {
		return c.WorkloadSource4
	}
	return c.WorkloadSource6
}

func (c *Config) workloadProtocol() kernel.Protocol {
	return cmp.Or(c.WorkloadProtocol, kernel.ProtocolCalico)
}

func (r *rules) blackhole(p netip.Prefix) *kernel.Route {
	route := &kernel.Route{Dst: p, Metric: staticMetric4, Protocol: kernel.ProtocolBIRD, Type: kernel.Blackhole}
	if p.Addr().Is6() {
		route.Metric = staticMetric6
	}
	return route
}

func (r *rules) learned(p netip.Prefix, s *state) (*kernel.Route, string) {
	if note := r.refuse(p, s); note != "" {
		return nil, note
	}
	route, note := r.throughPool(r.config.Pools.Of(p), p.Addr().Is6(), s.learned, s.metric)
	if route != nil {
		route.Dst = p
	}
	return route, note
}

// refuse returns why a learned route is not used; empty: it is. The address of a workload that leaves has been one of
// this node's.
func (r *rules) refuse(p netip.Prefix, s *state) string {
	if len(s.endpoints) > 0 && r.source(p, s) == SourceBGP {
		return ""
	}
	return r.ownership.Refuse(p)
}

// throughPool is the decision from learned that all prefixes of a pool and family share; without the prefix.
func (r *rules) throughPool(pool *ippool.Pool, ipv6 bool, learned []netip.Addr, metric uint32) (*kernel.Route, string) {
	if byIPAM(pool) {
		return nil, fmt.Sprintf("routes to pool %s (vxlanMode) follow from IPAM's blocks, not from BGP", pool.Name)
	}
	hops, mtu, note := r.nextHops(learned, pool)
	if len(hops) == 0 {
		return nil, note
	}
	if pool == nil { // it leads to other hosts than the next hop's pods
		mtu = 0
	}
	route := &kernel.Route{Metric: metric, Protocol: kernel.ProtocolBIRD, Type: kernel.Unicast, MTU: mtu,
		NextHops: hops}
	if pool.Encapsulation() != ippool.Direct {
		route.Protocol = kernel.ProtocolCalico
	}
	if ipv6 && route.Metric == 0 {
		route.Metric = 1 // the kernel reads 0 as 1024
	}
	return route, note
}

// nextHops resolves all next hops that can be resolved. mtu is the smallest of their ways, 0 if no way has one.
func (r *rules) nextHops(learned []netip.Addr, pool *ippool.Pool) (hops []kernel.NextHop, mtu uint32, note string) {
	if len(learned) == 1 {
		w, why := r.nextHop(learned[0], pool)
		return w.hops, w.mtu, why
	}
	var missing []string
	for _, nh := range learned {
		w, why := r.nextHop(nh, pool)
		if why != "" && !slices.Contains(missing, why) {
			missing = append(missing, why)
		}
		if w.mtu != 0 && (mtu == 0 || w.mtu < mtu) {
			mtu = w.mtu
		}
		for _, h := range w.hops {
			if !slices.Contains(hops, h) {
				hops = append(hops, h)
			}
		}
	}
	return hops, mtu, strings.Join(missing, "; ")
}

// node returns the own address of the family of nh.
func (c *Config) node(nh netip.Addr) netip.Prefix {
	if nh.Is6() {
		return c.Node6
	}
	return c.Node4
}

// nextHop returns the way to a next hop, and why it has no hops.
func (r *rules) nextHop(nh netip.Addr, pool *ippool.Pool) (*way, string) {
	device := pool.Reach(r.config.node(nh), nh).Device()
	if device == directly || r.own.Has(nh) {
		w := r.reach(nh, directly)
		return w, w.reason
	}
	w := r.reach(nh, device)
	if len(w.hops) == 0 {
		return w, w.missing(pool)
	}
	return w, ""
}
