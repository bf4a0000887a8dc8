// Package ipamgc finds addresses and blocks that nobody uses any more, and releases them: it knows why, makes sure
// right before, and says so.
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

// place is where an address is assigned. Blocks of different sizes may hold the same address.
type place struct {
	block   netip.Prefix
	address netip.Addr
}

// allocation is an assigned address, and since when it looks unused.
type allocation struct {
	ipam.Allocation
	place
	suspect   time.Time // zero: in use, as far as is known
	confirmed bool
	reason    Reason
}

func (a *allocation) node() string { return a.Attrs[attrNode] }
func (a *allocation) tunnel() bool { return tunnelTypes[a.Attrs[attrType]] }

// vm returns the KubeVirt virtual machine that has the address, empty if it is none. It is in the namespace of its pod.
func (a *allocation) vm() string { return a.Attrs[attrVM] }

// pod returns the pod that has the address. ok is false for an address of something else, or of before pods were noted.
func (a *allocation) pod() (namespace, name string, ok bool) {
	namespace, name = a.Attrs[attrNamespace], a.Attrs[attrPod]
	return namespace, name, namespace != "" && name != ""
}

func (a *allocation) use() { a.suspect, a.confirmed, a.reason = time.Time{}, false, "" }

// block is what counts of an IPAM block.
type block struct {
	cidr        netip.Prefix
	host        string // whose block it is, empty if it is nobody's or of a virtual owner
	empty       bool   // nothing is assigned or cools down in it
	emptySince  time.Time
	cooling     bool
	coolingFrom time.Time
	allocations map[netip.Addr]*allocation
}

// index holds IPAM's blocks, and finds them by CIDR and owner, their allocations by node and handle, and the
// affinities. An update costs as much as one block.
type index struct {
	blocks   map[netip.Prefix]*block
	byHost   map[string]map[netip.Prefix]*block // by owner
	byNode   map[string]map[place]*allocation   // by the node that uses the address
	byHandle map[string]map[place]*allocation
	cooling  map[netip.Prefix]*block
	claims   map[model.Key]*claim
	dirty    map[string]bool // nodes to be judged again
}

// claim is the affinity of a host to a block, and since when it waits for its deletion to be finished.
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

// putClaim takes an affinity as it is now; nil means that it is gone.
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

// put takes a block as it is now; nil means that it is gone.
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

// assign takes over what is known of an allocation, unless the address was assigned anew.
func (x *index) assign(was, now *block, a ipam.Allocation) {
	if a.Windows || a.Handle == "" {
		return // what has no handle cannot be released for sure
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

// drop forgets an allocation that is no more, unless another one has taken its place.
func (x *index) drop(a *allocation) {
	remove(x.byHandle, a.Handle, a.place, a)
	if a.node() != "" {
		remove(x.byNode, a.node(), a.place, a)
		x.dirty[a.node()] = true
	}
}

// own puts the block itself in its places.
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

// nodes returns all that own or claim blocks or use addresses.
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
