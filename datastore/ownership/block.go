package ownership

import (
	"net/netip"
	"slices"

	"github.com/manxnet/manx/datastore/model"
)

// Block is a block of a node.
type Block struct {
	Node string
	CIDR netip.Prefix // without host bits
	// Releasing is set while the node releases the block. It advertises the block no more, but still drops packets to
	// unassigned addresses in it.
	Releasing bool
}

// BlockOf parses an affinity. ok is false unless the node has the block: a pending claim may still fail, and a deleted
// one is over. a may be nil.
func BlockOf(k model.Key, a *model.BlockAffinity) (b Block, ok bool) {
	claim, ok := k.Affinity()
	if !ok || a == nil || a.Deleted || claim.Type != model.AffinityHost {
		return Block{}, false
	}
	b = Block{Node: claim.Host, CIDR: claim.CIDR.Masked()}
	switch a.State {
	case "", model.StateConfirmed:
	case model.StatePendingDeletion:
		b.Releasing = true
	default:
		return Block{}, false
	}
	return b, true
}

// Blocks is a set of blocks with lookup of the block around a prefix. The zero value is empty. It omits blocks of a
// single address, which belongs to a workload or a tunnel.
type Blocks struct {
	set     map[netip.Prefix]bool
	lengths [2][]int // those in use; IPv4 and IPv6
}

// NewBlocks returns a set of the CIDRs of blocks.
func NewBlocks(cidrs ...netip.Prefix) Blocks {
	b := Blocks{set: make(map[netip.Prefix]bool, len(cidrs))}
	for _, p := range cidrs {
		p = p.Masked()
		if !p.IsValid() || p.IsSingleIP() {
			continue
		}
		b.set[p] = true
		if f := family(p.Addr()); !slices.Contains(b.lengths[f], p.Bits()) {
			b.lengths[f] = append(b.lengths[f], p.Bits())
		}
	}
	return b
}

func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// All returns the blocks. The map must not be changed.
func (b *Blocks) All() map[netip.Prefix]bool { return b.set }

// Around returns the block that equals or contains p.
func (b *Blocks) Around(p netip.Prefix) (netip.Prefix, bool) {
	for _, bits := range b.lengths[family(p.Addr())] {
		if bits > p.Bits() {
			continue
		}
		if block, err := p.Addr().Prefix(bits); err == nil && b.set[block] {
			return block, true
		}
	}
	return netip.Prefix{}, false
}
