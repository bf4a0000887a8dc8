package dataplane

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/link"
	"github.com/manxnet/manx/dataplane/route"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// state is the part of the datastore that concerns this host. It is kept up to date key by key, so that the cost
// follows the change: a cluster has many more endpoints than a host.
type state struct {
	node      string
	own       *model.Node
	felix     model.FelixConfigurationSpec
	pools     map[string]*model.IPPool
	blocks    map[netip.Prefix]bool
	endpoints map[model.Key]*model.WorkloadEndpoint
	// interfaces decide which endpoints are acted upon; ownPrefix is what this host's administrator says about them.
	interfaces model.InterfacePrefixes
	ownPrefix  string
}

// readState reads everything.
func readState(node, ownPrefix string, r model.Reader) *state {
	s := &state{
		node: node, ownPrefix: ownPrefix, interfaces: model.ParseInterfacePrefixes(ownPrefix),
		pools: map[string]*model.IPPool{}, blocks: map[netip.Prefix]bool{}, endpoints: map[model.Key]*model.WorkloadEndpoint{},
	}
	for _, kind := range []model.Kind{model.KindNode, model.KindFelixConfiguration, model.KindIPPool, model.KindBlockAffinity, model.KindWorkloadEndpoint} {
		for o := range r.All(kind) {
			s.update(r, o.Key)
		}
	}
	return s
}

// update takes over one object. It reports whether that can concern this host at all.
func (s *state) update(r model.Reader, k model.Key) bool {
	switch k.Kind {
	case model.KindNode:
		if k.Name != s.node {
			return false
		}
		s.own = model.Get[model.Node](r, k)
		s.setFelix(r) // its labels may select others
	case model.KindFelixConfiguration:
		if !model.ConcernsFelix(k.Name, s.node) {
			return false
		}
		s.setFelix(r)
	case model.KindIPPool:
		put(s.pools, k.Name, model.Get[model.IPPool](r, k))
	case model.KindBlockAffinity:
		return s.updateAffinity(r, k)
	case model.KindWorkloadEndpoint:
		e := model.Get[model.WorkloadEndpoint](r, k)
		if e != nil && e.Spec.Node != s.node {
			e = nil
		}
		if e == nil && s.endpoints[k] == nil {
			return false
		}
		put(s.endpoints, k, e)
	default:
		return false
	}
	return true
}

func (s *state) setFelix(r model.Reader) {
	s.felix = model.FelixOverlay(r, s.node)
	s.interfaces = model.ParseInterfacePrefixes(cmp.Or(s.ownPrefix, s.felix.InterfacePrefix))
}

// usable visits the endpoints that are acted upon: those whose interface may be a workload's. One without an interface
// has none yet.
func (s *state) usable() iter.Seq2[model.Key, *model.WorkloadEndpoint] {
	return func(yield func(model.Key, *model.WorkloadEndpoint) bool) {
		for k, e := range s.endpoints {
			if e.Spec.InterfaceName != "" && s.interfaces.Refuse(e.Spec.InterfaceName) == "" && !yield(k, e) {
				return
			}
		}
	}
}

// refusal returns why an endpoint is not acted upon, empty if it is.
func (s *state) refusal(k model.Key) string {
	e := s.endpoints[k]
	if e == nil || e.Spec.InterfaceName == "" {
		return ""
	}
	return s.interfaces.Refuse(e.Spec.InterfaceName)
}

func put[K comparable, V any](m map[K]*V, k K, v *V) {
	if v == nil {
		delete(m, k)
		return
	}
	m[k] = v
}

func (s *state) updateAffinity(r model.Reader, k model.Key) bool {
	claim, ok := k.Affinity()
	if !ok || claim.Type != model.AffinityHost || claim.Host != s.node {
		return false
	}
	// One that is being released drops packets until it is gone.
	if b, ok := ownership.BlockOf(k, model.Get[model.BlockAffinity](r, k)); ok {
		s.blocks[b.CIDR] = true
	} else {
		delete(s.blocks, claim.CIDR.Masked())
	}
	return true
}

// bgpSpec is never nil.
func (s *state) bgpSpec() *model.NodeBGPSpec {
	if s.own == nil || s.own.Spec.BGP == nil {
		return &model.NodeBGPSpec{}
	}
	return s.own.Spec.BGP
}

// address reads "10.0.0.5/24"; without a length it is a subnet of its own.
func address(text string) netip.Prefix {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a, a.BitLen())
	}
	return netip.Prefix{}
}

func (s *state) routeConfig(isNode func(netip.Addr) bool) route.Config {
	c := route.Config{
		Node4:            s.bgpSpec().Address(model.IPv4),
		Node6:            s.bgpSpec().Address(model.IPv6),
		Pools:            s.poolTable(),
		Blocks:           slices.SortedFunc(maps.Keys(s.blocks), netip.Prefix.Compare),
		WorkloadPrefixes: s.interfaces,
		WorkloadMetric4:  metric(s.felix.IPv4NormalRoutePriority),
		WorkloadMetric6:  metric(s.felix.IPv6NormalRoutePriority),
		Tables:           ownTables(),
		IsNode:           isNode,
	}
	for k, e := range s.usable() {
		c.Endpoints = append(c.Endpoints, route.Endpoint{
			Name: k.Namespace + "/" + k.Name, Interface: e.Spec.InterfaceName,
			Addresses: hostPrefixes(s.addresses(e.Spec)),
		})
	}
	slices.SortFunc(c.Endpoints, func(a, b route.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return c
}

// addresses are what is routed to a workload: its own addresses and, if they are in use, its floating ones.
func (s *state) addresses(w model.WorkloadEndpointSpec) []string {
	if !s.felix.UsesFloatingIPs() {
		return w.IPNetworks
	}
	list := slices.Clone(w.IPNetworks)
	for _, n := range w.IPNATs {
		list = append(list, n.ExternalIP)
	}
	return list
}

// hostPrefixes writes an endpoint's addresses as route.Endpoint has them; Calico accepts them without a length, too.
func hostPrefixes(networks []string) string {
	var list []string
	for _, text := range networks {
		if p := address(text); p.IsValid() {
			list = append(list, p.String())
		}
	}
	return strings.Join(list, " ")
}

func metric(p *int) uint32 {
	if p == nil || *p <= 0 {
		return 0
	}
	return uint32(*p)
}

func (s *state) poolTable() ippool.Table {
	var pools []ippool.Pool
	for name, v := range s.pools {
		if p, err := ippool.Parse(name, &v.Spec); err == nil {
			pools = append(pools, p)
		}
	}
	return ippool.NewTable(pools...)
}

func (s *state) linkConfig() link.Config {
	c := link.Config{NoForwarding: s.felix.IPForwarding == "Disabled"}
	ipip, mtu := s.poolTable().Use(ippool.IPIP), 0
	if s.felix.IPIPEnabled != nil {
		ipip = *s.felix.IPIPEnabled
	}
	if s.felix.IPIPMTU != nil {
		mtu = *s.felix.IPIPMTU
	}
	if ipip {
		c.Devices = append(c.Devices, link.IPIP(s.own.TunnelAddress(model.DeviceIPIP), mtu))
	}
	if s.felix.MTUIfacePattern != "" {
		if re, err := regexp.Compile(s.felix.MTUIfacePattern); err == nil {
			c.MTUPattern = re
		}
	}
	for _, e := range s.usable() {
		end := link.Endpoint{Interface: e.Spec.InterfaceName, Spoof: len(e.Spec.AllowSpoofedSourcePrefixes) > 0}
		for _, text := range e.Spec.IPNetworks {
			if p := address(text); p.IsValid() {
				end.V4, end.V6 = end.V4 || p.Addr().Is4(), end.V6 || p.Addr().Is6()
			}
		}
		c.Endpoints = append(c.Endpoints, end)
	}
	slices.SortFunc(c.Endpoints, func(a, b link.Endpoint) int { return strings.Compare(a.Interface, b.Interface) })
	return c
}
