package hoststate

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/manxnet/manx/dataplane/cryptokey"
	"github.com/manxnet/manx/dataplane/vtep"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/ippool"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/ownership"
)

// Host is the newest State, with the part of the datastore that concerns one host. It is kept up to date key by key, so
// that the cost follows the change: a cluster has many more endpoints than a host. Not safe for concurrent use.
type Host struct {
	State
	// Concerned reports whether the part of the datastore that concerns this host may differ from the State before.
	Concerned bool
	// Foreign reports whether State differs from the one before in objects of other nodes alone, such as their pods: no
	// target of this host depends on them.
	Foreign bool
	// NodesChanged reports whether the addresses of nodes may differ, VTEPsChanged whether those for VXLAN may, and
	// KeysChanged whether the keys of nodes for WireGuard may, or the addresses that belong to them.
	NodesChanged, VTEPsChanged, KeysChanged bool
	// VTEPsOf are the nodes whose addresses for VXLAN may differ, nil for any of them.
	VTEPsOf []string

	// PolicyOnly is set if another program makes the network of pods, such as the CNI plugin of a cloud: this host then
	// has no tunnels and no blocks, and leaves routes and settings of the interfaces that it does not connect alone.
	PolicyOnly bool

	// Underlay is the network between the nodes, as the routes of this host have it.
	Underlay Underlay

	Node   string      // the name of this host's
	Own    *model.Node // nil: there is none
	Felix  model.FelixConfigurationSpec
	Pools  map[string]*model.IPPool
	Blocks map[netip.Prefix]bool // that are assigned to this host
	// Interfaces decide which endpoints are acted upon.
	Interfaces felixconfig.InterfacePrefixes
	local      *felixconfig.Local // the settings of this host's administrator
	stateOnly  bool

	endpoints map[model.Key]*model.Workload
	nodes     map[netip.Addr]bool // see IsNode
	vteps     map[model.Family]*vtep.Table
	keys      map[model.Family]*cryptokey.Table
}

// New makes a Host that has no State yet. local are the settings of this host's administrator, which come before those
// of FelixConfiguration; nil: none.
func New(node string, local *felixconfig.Local) *Host { return &Host{Node: node, local: local} }

// NewStateOnly makes a Host that takes over each State and reads nothing of it, for targets that read snapshots
// themselves.
func NewStateOnly() *Host { return &Host{stateOnly: true} }

// Known reports whether there has been a snapshot of the datastore.
func (h *Host) Known() bool { return h.Reader != nil }

// Take applies a State.
func (h *Host) Take(next State) {
	known := h.Known()
	if next.Reader == nil {
		next.Reader = h.Reader
	}
	next.All = next.All || !known
	h.Foreign = !next.All && len(next.Changed) > 0 && next.sameSettings(h.State)
	h.State, h.Concerned, h.NodesChanged, h.VTEPsChanged, h.VTEPsOf = next, false, false, false, nil
	h.KeysChanged = false
	contested := false
	switch {
	case !h.Known() || h.stateOnly:
		h.Foreign = false
	case next.All:
		h.readAll()
		h.Concerned, h.NodesChanged, h.VTEPsChanged, h.KeysChanged, h.VTEPsOf = true, true, true, true, nil
	default:
		for _, k := range next.Changed {
			if k.Kind == model.KindNode {
				h.nodes, h.NodesChanged = nil, true
				contested = contested || h.contested()
			}
			concerned := h.update(h.Reader, k)
			h.Concerned = h.Concerned || concerned
			h.Foreign = h.Foreign && !concerned && (k.Kind == model.KindWorkloadEndpoint ||
				!slices.Contains(Kinds(), k.Kind))
		}
		if contested || h.contested() {
			h.VTEPsOf = nil
		}
	}
}

// Kinds returns the kinds of the objects that a Host is made of.
func Kinds() []model.Kind {
	return []model.Kind{model.KindNode, model.KindFelixConfiguration, model.KindIPPool, model.KindBlockAffinity,
		model.KindWorkloadEndpoint, model.KindMigration}
}

func (h *Host) readAll() {
	h.Own, h.nodes = nil, nil
	h.vteps = map[model.Family]*vtep.Table{model.IPv4: vtep.NewTable(model.IPv4), model.IPv6: vtep.NewTable(model.IPv6)}
	h.keys = map[model.Family]*cryptokey.Table{model.IPv4: cryptokey.NewTable(model.IPv4),
		model.IPv6: cryptokey.NewTable(model.IPv6)}
	h.setFelix(h.Reader)
	h.Pools, h.Blocks = map[string]*model.IPPool{}, map[netip.Prefix]bool{}
	h.endpoints = map[model.Key]*model.Workload{}
	for _, kind := range Kinds() {
		for o := range h.Reader.All(kind) {
			h.update(h.Reader, o.Key)
		}
	}
}

// update takes over one object. It reports whether the object can concern this host at all.
func (h *Host) update(r model.Reader, k model.Key) bool {
	switch k.Kind {
	case model.KindNode:
		n := model.Get[model.Node](r, k)
		for _, t := range h.vteps {
			if t.Set(k.Name, n) {
				h.VTEPsChanged, h.VTEPsOf = true, append(h.VTEPsOf, k.Name)
			}
		}
		for _, t := range h.keys {
			h.KeysChanged = t.Set(k.Name, n) || h.KeysChanged
		}
		if k.Name != h.Node {
			return false
		}
		h.Own = n
		h.setFelix(r) // its labels may select others
	case model.KindFelixConfiguration:
		if !felixconfig.Concerns(k.Name, h.Node) {
			return false
		}
		h.setFelix(r)
	case model.KindIPPool:
		put(h.Pools, k.Name, model.Get[model.IPPool](r, k))
	case model.KindBlockAffinity:
		return h.updateAffinity(r, k)
	case model.KindMigration: // few, for a short time
	case model.KindWorkloadEndpoint:
		if w := r.Get(k).Workload(); w != nil && w.Node == h.Node {
			h.endpoints[k] = w
			return true
		}
		if h.endpoints[k] == nil {
			return false
		}
		delete(h.endpoints, k)
	default:
		return false
	}
	return true
}

func (h *Host) setFelix(r model.Reader) {
	h.Felix = felixconfig.Merge(r, h.Node, h.local)
	h.Interfaces = felixconfig.ParseInterfacePrefixes(h.Felix.InterfacePrefix)
}

// Usable visits the endpoints that are acted upon, in the order of their names: those whose interface may be a
// workload's. One without an interface has none yet.
func (h *Host) Usable() iter.Seq2[model.Key, *model.Workload] {
	return func(yield func(model.Key, *model.Workload) bool) {
		for _, k := range slices.SortedFunc(maps.Keys(h.endpoints), byName) {
			w := h.endpoints[k]
			if w.Interface != "" && h.Interfaces.Refuse(w.Interface) == "" && !yield(k, w) {
				return
			}
		}
	}
}

func byName(a, b model.Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// Connects reports whether this host makes the routes and the settings of a workload's interface. Beside another
// network these are the interfaces of Calico's own CNI plugin, as with flannel between the nodes (canal).
func (h *Host) Connects(iface string) bool {
	return !h.PolicyOnly || strings.HasPrefix(iface, felixconfig.DefaultInterfacePrefix)
}

// refusal returns why an endpoint is not acted upon, empty if it is.
func (h *Host) refusal(k model.Key) string {
	w := h.endpoints[k]
	if w == nil || w.Interface == "" {
		return ""
	}
	return h.Interfaces.Refuse(w.Interface)
}

func put[K comparable, V any](m map[K]*V, k K, v *V) {
	if v == nil {
		delete(m, k)
		return
	}
	m[k] = v
}

func (h *Host) updateAffinity(r model.Reader, k model.Key) bool {
	claim, ok := k.Affinity()
	if !ok || claim.Type != model.AffinityHost || claim.Host != h.Node {
		return false
	}
	if h.PolicyOnly {
		return false
	}
	// One that is being released drops packets until it is gone.
	if b, ok := ownership.BlockOf(k, model.Get[model.BlockAffinity](r, k)); ok {
		h.Blocks[b.CIDR] = true
	} else {
		delete(h.Blocks, claim.CIDR.Masked())
	}
	return true
}

// BGPSpec is the own Node's, never nil.
func (h *Host) BGPSpec() *model.NodeBGPSpec {
	if h.Own == nil || h.Own.Spec.BGP == nil {
		return &model.NodeBGPSpec{}
	}
	return h.Own.Spec.BGP
}

// VTEPs are the VXLAN tunnel endpoints of the cluster's nodes, with this host's own.
func (h *Host) VTEPs(f model.Family) *vtep.Table { return h.vteps[f] }

func (h *Host) contested() bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(h.vteps)), (*vtep.Table).Contested)
}

// Keys are the public keys of the cluster's nodes for WireGuard, with this host's own.
func (h *Host) Keys(f model.Family) *cryptokey.Table { return h.keys[f] }

// PoolTable is the pools as far as it matters for the way to their addresses.
func (h *Host) PoolTable() ippool.Table {
	var pools []ippool.Pool
	for name, v := range h.Pools {
		if p, err := ippool.Parse(name, &v.Spec); err == nil {
			pools = append(pools, p)
		}
	}
	return ippool.NewTable(pools...)
}

// IsNode reports whether an address is a cluster node's. It is called for routes of protocol 80 that some earlier run
// left, and for addresses of this host's workloads: the addresses are collected when they are needed.
func (h *Host) IsNode(addr netip.Addr) bool {
	if h.nodes == nil {
		h.nodes = map[netip.Addr]bool{}
		for _, n := range model.All[model.Node](h.Reader, model.KindNode) {
			for _, a := range n.Addresses() {
				h.nodes[a] = true
			}
			for _, t := range n.TunnelAddresses() {
				h.nodes[t.Address] = true
			}
		}
	}
	return h.nodes[addr]
}
