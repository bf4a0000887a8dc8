package placement

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

// Placement says on which nodes the addresses of a block are. It is small, so that a node can keep those of all blocks
// of a cluster.
type Placement struct {
	Block netip.Prefix // without host bits
	// Node has the block, and all of its addresses but the borrowed ones; empty: no node has it.
	Node string
	// Borrowed has the addresses that other nodes use, each with its node.
	Borrowed map[netip.Addr]string
}

// of returns the placement of a block. An address that is assigned without a node, as for a Service, is on none.
func of(b *model.Block) *Placement {
	p := &Placement{Block: b.CIDR.Masked()}
	if b.Deleted {
		return p
	}
	if owner, ok := ipam.OwnerOf(b); ok && owner.Type == model.AffinityHost {
		p.Node = owner.Name
	}
	for a := range ipam.Allocations(b) {
		if node := a.Attrs["node"]; node != "" && node != p.Node {
			if p.Borrowed == nil {
				p.Borrowed = map[netip.Addr]string{}
			}
			p.Borrowed[a.Address] = node
		}
	}
	return p
}

// Reduce returns a block with its Placement in place of its content, or a BlockAffinity with that of a block which is
// on its host as a whole; other objects stay as they are. Tables of reduced objects cannot be written.
func Reduce(o *model.Object) *model.Object {
	reduced := &model.Object{Key: o.Key, Revision: o.Revision}
	switch value := o.Value.(type) {
	case *model.Block:
		reduced.Value = of(value)
	case *model.BlockAffinity:
		reduced.Value = ofAffinity(o.Key, value)
	default:
		return o
	}
	return reduced
}

// ofAffinity returns the placement of a block that a host has claimed, and that no other host borrows from.
func ofAffinity(k model.Key, b *model.BlockAffinity) *Placement {
	claim, ok := k.Affinity()
	p := &Placement{Block: claim.CIDR.Masked()}
	if ok && claim.Type == model.AffinityHost && b.State == model.StateConfirmed && !b.Deleted {
		p.Node = claim.Host
	}
	return p
}

// Change is a prefix with the node that has it now; without a Node it is on none any more.
type Change struct {
	Prefix netip.Prefix
	Node   string
}

// Changes returns the difference between two placements of one block; nil: none.
func Changes(old, fresh *Placement) (list []Change) {
	before, after := old.prefixes(), fresh.prefixes()
	for _, p := range slices.SortedFunc(maps.Keys(after), netip.Prefix.Compare) {
		if before[p] != after[p] {
			list = append(list, Change{p, after[p]})
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(before), netip.Prefix.Compare) {
		if _, still := after[p]; !still {
			list = append(list, Change{Prefix: p})
		}
	}
	return list
}

// prefixes returns the nodes by prefix.
func (p *Placement) prefixes() map[netip.Prefix]string {
	m := map[netip.Prefix]string{}
	if p == nil {
		return m
	}
	if p.Node != "" {
		m[p.Block] = p.Node
	}
	for a, node := range p.Borrowed {
		m[netip.PrefixFrom(a, a.BitLen())] = node
	}
	return m
}
