// Package ipamgc finds unused addresses and blocks, and releases them: each for a reason, which is verified right
// before the release and logged.
package ipamgc

import (
	"net/netip"
	"time"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// Attributes of allocations, as Calico writes them.
const (
	attrNode      = "node"
	attrNamespace = "namespace"
	attrPod       = "pod"
	attrType      = "type"
	attrVM        = "vmi-name"
)

// tunnelTypes are the values of attrType for the addresses of tunnel devices.
var tunnelTypes = map[string]bool{"ipipTunnelAddress": true, "vxlanTunnelAddress": true, "vxlanV6TunnelAddress": true,
	"wireguardTunnelAddress": true, "wireguardV6TunnelAddress": true}

// place is the position of an assigned address. Blocks of different sizes may contain the same address.
type place struct {
	block   netip.Prefix
	address netip.Addr
}

// allocation is an assigned address, and the time since which it looks unused.
type allocation struct {
	ipam.Allocation
	place
	suspect   time.Time // zero: in use, as far as known
	confirmed bool
	reason    Reason
}

func (a *allocation) node() string { return a.Attrs[attrNode] }
func (a *allocation) tunnel() bool { return tunnelTypes[a.Attrs[attrType]] }

// vm returns the KubeVirt virtual machine of the address, empty if it is none. It is in the namespace of its pod.
func (a *allocation) vm() string { return a.Attrs[attrVM] }

// pod returns the pod of the address. ok is false for an address that is not a pod's, or for an old allocation without
// a pod.
func (a *allocation) pod() (namespace, name string, ok bool) {
	namespace, name = a.Attrs[attrNamespace], a.Attrs[attrPod]
	return namespace, name, namespace != "" && name != ""
}

func (a *allocation) use() { a.suspect, a.confirmed, a.reason = time.Time{}, false, "" }

// block has the relevant properties of an IPAM block.
type block struct {
	cidr        netip.Prefix
	host        string // the owner, empty for none or a virtual owner
	empty       bool   // no address is assigned or cooling down
	emptySince  time.Time
	cooling     bool
	coolingFrom time.Time
	allocations map[netip.Addr]*allocation
}

// index has IPAM's blocks by CIDR and owner, their allocations by node and handle, and the affinities. The cost of an
// update is that of one block.
type index struct {
	blocks   map[netip.Prefix]*block
	byHost   map[string]map[netip.Prefix]*block // by owner
	byNode   map[string]map[place]*allocation   // by the node that uses the address
	byHandle map[string]map[place]*allocation
	cooling  map[netip.Prefix]*block
	claims   map[model.Key]*claim
	dirty    map[string]bool // nodes to be evaluated again
}

// claim is the affinity of a host to a block, and the time since which its deletion is pending.
type claim struct {
	model.Affinity
	revision int64
	leaving  bool
	since    time.Time
}

func newIndex() *index {
	return &index{blocks: map[netip.Prefix]*block{}, byHost: map[string]map[netip.Prefix]*block{},
		byNode: map[string]map[place]*allocation{}, byHandle: map[string]map[place]*allocation{},
		cooling: map[netip.Prefix]*block{}, claims: map[model.Key]*claim{}, dirty: map[string]bool{}}
}

// putClaim sets the current state of an affinity; nil if it is deleted.
func (x *index) putClaim(key model.Key, o *model.Object) {
	delete(x.claims, key)
	a, ok := key.Affinity()
	if o == nil || !ok || a.Type != model.AffinityHost {
		return
	}
	b, _ := o.Value.(*model.BlockAffinity)
	x.claims[key] = &claim{Affinity: a, revision: o.Revision, leaving: b != nil &&
		b.State == model.StatePendingDeletion}
}

// put sets the current state of a block; nil if it is deleted.
func (x *index) put(cidr netip.Prefix, b *model.Block) {
	was := x.blocks[cidr]
	if was == nil {
		was = &block{cidr: cidr, allocations: map[netip.Addr]*allocation{}}
	}
	now := &block{cidr: cidr, emptySince: was.emptySince, allocations: map[netip.Addr]*allocation{}}
	if b != nil {
		if owner, ok := ipam.OwnerOf(b); ok && owner.Type == model.AffinityHost {
			now.host = owner.Name
		}
		now.empty = ipam.Empty(b)
		now.coolingFrom, now.cooling = ipam.CoolingSince(b)
		for a := range ipam.Allocations(b) {
			x.assign(was, now, a)
		}
	}
	for address, a := range was.allocations {
		if now.allocations[address] != a {
			x.drop(a)
		}
	}
	if !now.empty || now.host != was.host {
		now.emptySince = time.Time{}
	}
	x.own(was, now, b != nil)
}

// assign keeps the state of an allocation, unless the address was assigned again.
func (x *index) assign(was, now *block, a ipam.Allocation) {
	if a.Windows || a.Handle == "" {
		return // without a handle there is no safe release
	}
	known := was.allocations[a.Address]
	if known == nil || known.Handle != a.Handle || known.Sequence != a.Sequence || known.node() != a.Attrs[attrNode] {
		known = &allocation{Allocation: a, place: place{now.cidr, a.Address}}
		insert(x.byHandle, a.Handle, known.place, known)
		if known.node() != "" {
			insert(x.byNode, known.node(), known.place, known)
			x.dirty[known.node()] = true
		}
	}
	now.allocations[a.Address] = known
}

// drop removes an ended allocation, unless another one has taken its place.
func (x *index) drop(a *allocation) {
	remove(x.byHandle, a.Handle, a.place, a)
	if a.node() != "" {
		remove(x.byNode, a.node(), a.place, a)
		x.dirty[a.node()] = true
	}
}

// own updates the block's own entries.
func (x *index) own(was, now *block, exists bool) {
	if was.host != "" {
		remove(x.byHost, was.host, was.cidr, was)
		x.dirty[was.host] = x.dirty[was.host] || was.host != now.host
	}
	delete(x.blocks, now.cidr)
	delete(x.cooling, now.cidr)
	if !exists {
		return
	}
	x.blocks[now.cidr] = now
	if now.host != "" {
		insert(x.byHost, now.host, now.cidr, now)
		x.dirty[now.host] = x.dirty[now.host] || was.host != now.host
	}
	if now.cooling {
		x.cooling[now.cidr] = now
	}
}

// nodes returns all nodes that own or claim blocks or use addresses.
func (x *index) nodes() map[string]bool {
	all := make(map[string]bool, len(x.byNode))
	for n := range x.byNode {
		all[n] = true
	}
	for n := range x.byHost {
		all[n] = true
	}
	for _, c := range x.claims {
		all[c.Host] = true
	}
	return all
}

func insert[A, B comparable, V any](m map[A]map[B]V, a A, b B, v V) {
	if m[a] == nil {
		m[a] = map[B]V{}
	}
	m[a][b] = v
}

// remove takes v out if it is there.
func remove[A, B, V comparable](m map[A]map[B]V, a A, b B, v V) {
	if m[a][b] != v {
		return
	}
	if delete(m[a], b); len(m[a]) == 0 {
		delete(m, a)
	}
}
